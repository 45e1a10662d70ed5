// Operations on queues: a dialog shows how many items are affected, what happens to them and the equivalent command.
// The user confirms the numbers shown: the server refuses if there are more items by then.

import { $, command, fill, h, icon, say, toast } from './dom.js';
import * as f from './format.js';
import { get, notePause, originsOf, post, queuePath, remove as erase, store } from './store.js';

function report(error) {
  toast(error.message, true);
}

const WHAT_NOW = { // by the status of a refusal; 0: no reply came
  0: 'It may have been done all the same: cancel, and look again before you repeat it.',
  409: 'Cancel, and look again: it is not as it was.',
};

function isCutOff() {
  if (store.state === 'live') return false;
  toast('Not connected: nothing can be changed from here now.', true);
  return true;
}

// `points`: [icon, text, kind]; `act`: the action of the button. The focus is on Cancel.
export function confirm({ title, points, fields = [], same, button, isDanger = false, act }) {
  if (isCutOff() || document.querySelector('dialog[open]')) return;
  const from = document.activeElement;
  const list = h('ul', null, points.map(([name, text, kind]) => h('li', { class: kind || '' }, icon(name), h('span', null, text))));
  const yes = h('button', { class: `btn main${isDanger ? ' danger' : ''}`, type: 'submit', id: 'confirm' }, button);
  const no = h('button', { class: 'btn', type: 'button', id: 'cancel', onclick: () => dialog.close() }, 'Cancel');
  const sameBox = h('div', { class: 'same' }, 'Same as', command(same));
  const form = h('form', { class: 'ask' }, h('h2', { id: 'ask-title' }, title), list, fields, sameBox, h('footer', null, no, yes));
  const dialog = h('dialog', { 'aria-labelledby': 'ask-title' }, form);
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    yes.disabled = true;
    try {
      const told = await act();
      dialog.close();
      tell(told);
    } catch (error) {
      if (!dialog.isConnected) {
        report(error);
        return;
      }
      yes.disabled = false;
      const then = WHAT_NOW[error.status];
      fill(list, h('li', { class: 'hurt' }, icon('warn'), h('span', null, error.message)), then ? h('li', null, icon('back'), h('span', null, then)) : '');
      say(error.message);
    }
  });
  dialog.addEventListener('close', () => {
    dialog.remove();
    if (from?.isConnected) from.focus({ preventScroll: true });
  });
  document.body.append(dialog);
  dialog.showModal();
  no.focus();
  return { button: yes, same: (text) => fill(sameBox, 'Same as', command(text)) };
}

const fresh = async (row) => get(queuePath(row.name));
const guarded = (operation) => async (row, ...more) => {
  if (isCutOff()) return;
  try {
    await operation(row, ...more);
  } catch (error) {
    report(error);
  }
};
const named = (row) => f.oneLine(row.name);

export const purge = guarded(async (row) => {
  const { items, bytes, open_reads: open } = await fresh(row);
  if (!items) {
    toast(`Nothing to purge: ${named(row)} is empty.`);
    return;
  }
  confirm({
    title: `Purge ${f.items(items)} from ${named(row)}?`,
    isDanger: true,
    button: `Purge ${f.items(items)}`,
    same: `staniel purge ${f.shell(row.name)} --yes`,
    points: [
      ['out', `${f.items(items)} (${f.bytes(bytes)}) leave the queue: all that wait now. Consumers never see them.`],
      ['stay', `${open ? `${f.many(open, 'open read stays', 'open reads stay')} with ${open === 1 ? 'its client' : 'their clients'}. ` : ''}If more than ${f.items(items)} wait by then, nothing is purged.`],
      ['back', 'Undo returns them to the end of the queue. The message that follows offers it, and says until when.'],
    ],
    act: async () => {
      const found = await post(queuePath(row.name, 'purge'), { expected: items });
      return result(`Purged ${f.items(found.purged)} from ${named(row)}.`, found);
    },
  });
});

function result(text, found) {
  const early = found.why ? ` Ended early: ${found.why}.` : '';
  const until = found.undo ? ` Until ${f.clock(found.undo_until_at_ms, false)}, to take it back: staniel undo ${found.undo}` : '';
  return { text: text + early + until, undo: found.undo };
}

let lastUndo = 0;

function tell(told) {
  if (!told.undo) {
    toast(told.text || told);
    return;
  }
  lastUndo = told.undo;
  toast(told.text, false, h('button', { class: 'btn sm', type: 'button', onclick: (event) => takeBack(told.undo, event.target) }, 'Undo ', h('kbd', null, 'u')));
}

async function takeBack(number, button) {
  if (isCutOff() || button?.disabled) return;
  if (button) button.disabled = true;
  if (lastUndo === number) lastUndo = 0;
  try {
    const found = await post(`/api/undo/${number}`);
    const rest = [found.open && `${f.items(found.open)} open with clients`, found.gone && `${f.items(found.gone)} taken since`].filter(Boolean).join(', ');
    const text = `Returned ${f.items(found.returned)} to ${f.oneLine(found.queue)}.${rest ? ` Not back: ${rest}.` : ''}`;
    toast(found.why ? `${text} The others can still be returned: ${found.why}` : text, Boolean(found.why));
  } catch (error) {
    report(error);
  }
}

export const undoLast = () => (lastUndo ? takeBack(lastUndo) : toast('Nothing to undo from this page; `staniel undo` lists what can be.'));

async function setPause(row, verb, body, told) {
  notePause(row.name, await post(queuePath(row.name, verb), body));
  toast(told);
}
export const pause = guarded((row) => (row.paused !== 'none'
  ? setPause(row, 'resume', {}, `Resumed ${named(row)}.`)
  : setPause(row, 'pause', { gets: true, puts: false }, `Paused gets of ${named(row)}. Puts go on.`)));

export const pausePuts = guarded((row) => setPause(row, 'pause', { gets: row.paused === 'gets' || row.paused === 'all', puts: true },
  `Paused puts to ${named(row)}.${row.paused === 'gets' ? '' : ' Gets go on.'}`));

export const remove = guarded(async (row) => {
  const { items, bytes, open_reads: open } = await fresh(row);
  confirm({
    title: `Delete ${named(row)}, with ${f.items(items)}?`,
    isDanger: true,
    button: `Delete ${items ? f.items(items) : 'the queue'}`,
    same: `staniel delete ${f.shell(row.name)} --yes`,
    points: [
      ['out', items ? `${f.items(items)} (${f.bytes(bytes)}) leave with the queue and its files.` : 'It is empty: the queue and its files go.'],
      ['stay', open ? `${f.many(open, 'open read')}: the server refuses as long as clients hold items.` : 'A client that puts into it makes it again.'],
      ['back', items ? 'Undo makes it again, with its items. The message that follows offers it, and says until when.' : 'Nothing is lost: there is no item in it.'],
    ],
    act: async () => result(`Deleted ${named(row)}, with ${f.items(items)}.`, await erase(queuePath(row.name))),
  });
});

// Operations on the server.

export const reload = guarded(async () => {
  const found = await post('/api/reload');
  toast(`Reloaded.${found.later ? ` A restart takes over ${found.later}.` : ''}`);
});

const STATUS = {
  up: 'Everything is served.', writeavoid: 'Everything is served, and clients are asked to write elsewhere.',
  readonly: 'Puts are refused; consumers drain the queues.', quiescent: 'Puts and gets are refused.',
};
export const setStatus = guarded(async (status) => confirm({
  title: `Set the status to ${status}?`,
  isDanger: status === 'quiescent' || status === 'readonly',
  button: `Set status ${status}`,
  same: `staniel status ${status}`,
  points: [['out', STATUS[status]], ['stay', 'It survives a restart.'], ['back', status === 'up' ? 'It is what ends every other status.' : '`staniel status up` ends it, or the same from here.']],
  act: async () => `The status is ${(await post('/api/status', { status })).status}.`,
}));

export const stop = guarded(async () => confirm({
  title: 'Stop the server?',
  isDanger: true,
  button: 'Stop the server',
  same: 'staniel stop --yes',
  points: [['out', 'All clients are disconnected; what they hold is back in its queues.'], ['stay', 'Every item that was acknowledged is on the disk.'], ['warn', 'This page cannot start it again: a supervisor, or `staniel serve`, does.', 'hurt']],
  act: async () => { await post('/api/stop'); return 'The server stops.'; },
}));

export const abortClient = guarded(async (client) => confirm({
  title: `Give back what ${f.oneLine(client.address)} holds?`,
  isDanger: true,
  button: `Give back ${f.many(client.open_reads, 'read')}`,
  same: `staniel abort --client ${client.number} --yes`,
  points: [['back', `${f.items(client.open_reads)} stand at the heads of their queues again and are handed out next.`], ['warn', TWICE, 'hurt']],
  act: async () => `Gave back ${f.many((await post(`/api/clients/${client.number}/abort`)).aborted, 'open read')}.`,
}));

export const cancelOperation = guarded(async (operation) => {
  await post(`/api/operations/${operation.id}/cancel`);
  toast(`Operation ${operation.id} ends between two items. What was done stays done.`);
});

export const undoOperation = guarded((operation) => takeBack(operation.undo, null));

export const move = guarded(async (row) => {
  const { items, open_reads: open } = await fresh(row);
  if (!items) {
    toast(`Nothing to move: ${named(row)} is empty.`);
    return;
  }
  const names = [...store.rows.keys()].filter((name) => name !== row.name).slice(0, 500);
  const to = h('input', { class: 'field', id: 'move-to', required: true, autocomplete: 'off', spellcheck: false });
  to.setAttribute('list', 'move-names');
  const count = h('input', { class: 'field', id: 'move-count', type: 'number', min: 1, max: items, value: items, required: true });
  const shown = confirm({
    title: `Move items from ${named(row)}`,
    button: `Move ${f.items(items)}`,
    same: `staniel move ${f.shell(row.name)} QUEUE -n ${items} --yes`,
    fields: h('div', { class: 'two' }, h('label', null, 'To', to, h('datalist', { id: 'move-names' }, names.map((name) => h('option', { value: name })))), h('label', null, 'How many, from the head', count)),
    points: [
      ['out', 'They leave from the head and join the end of the other queue, which is made if there is none. No crash loses or doubles one on its way.'],
      ['stay', `${open ? `${f.many(open, 'open read stays', 'open reads stay')} here. ` : ''}What is put meanwhile stays.`],
      ['back', 'Undo moves back those that still wait there. The message that follows offers it, and says until when.'],
    ],
    act: async () => {
      const found = await post(queuePath(row.name, 'move'), { to: to.value, count: Number(count.value) });
      return result(`Moved ${f.items(found.moved)} to ${f.oneLine(found.to)}.`, found);
    },
  });
  const update = () => {
    shown.button.textContent = `Move ${f.items(Number(count.value) || 0)}`;
    shown.same(`staniel move ${f.shell(row.name)} ${to.value ? f.shell(to.value) : 'QUEUE'} -n ${Number(count.value) || 0} --yes`);
  };
  for (const field of [to, count]) field.addEventListener('input', update);
});

// One item, known by its id: it is found at any position by then, and nothing else is touched.

const PASSED = ['stay', 'The others keep their order. Those ahead of it are set aside for a moment, as if a client had them open.'];
const GONE = 'It is not in the queue any more: look again.';
const byId = (item) => [`id=${item.id}`];
const idTerm = (item) => `--where ${f.shell(`id=${item.id}`)}`;

function itemResult(count, text, found) {
  if (!count) throw Object.assign(new Error(found.why || GONE), { status: 409 });
  return result(text, found);
}

export const deleteItem = guarded((row, item, then) => confirm({
  title: `Delete 1 item from ${named(row)}?`,
  isDanger: true,
  button: 'Delete 1 item',
  same: `staniel purge ${f.shell(row.name)} ${idTerm(item)} --yes`,
  points: [['out', `The item (${f.bytes(item.data_bytes)}) leaves the queue. Consumers never see it.`], PASSED, ['back', 'Undo returns it to the end of the queue. The message that follows offers it, and says until when.']],
  act: async () => {
    const found = await post(queuePath(row.name, 'purge'), { where: byId(item), expected: 1 });
    then();
    return itemResult(found.purged, `Deleted 1 item from ${named(row)}.`, found);
  },
}));

export const retryItem = guarded((row, item, then) => {
  const home = item.past.origin;
  confirm({
    title: `Send 1 item back to ${f.oneLine(home)}?`,
    button: 'Retry 1 item',
    same: `staniel move ${f.shell(row.name)} ${f.shell(home)} ${idTerm(item)} --yes`,
    points: [['out', `It goes to the end of ${f.oneLine(home)}, the queue that it left, with all its tries anew.`], ['stay', 'What has made it fail will do so again, if it is still there.'], ['back', 'Undo moves it back, if it still waits there.']],
    act: async () => {
      const found = await post(queuePath(row.name, 'move'), { to: home, where: byId(item), expected: 1 });
      then();
      return itemResult(found.moved, `Sent 1 item back to ${f.oneLine(home)}.`, found);
    },
  });
});

export const moveItem = guarded((row, item, then) => {
  const names = [...store.rows.keys()].filter((name) => name !== row.name).slice(0, 500);
  const to = h('input', { class: 'field', id: 'item-to', required: true, autocomplete: 'off', spellcheck: false });
  to.setAttribute('list', 'item-names');
  const same = () => `staniel move ${f.shell(row.name)} ${to.value ? f.shell(to.value) : 'QUEUE'} ${idTerm(item)} --yes`;
  const shown = confirm({
    title: `Move 1 item from ${named(row)}`,
    button: 'Move 1 item',
    same: same(),
    fields: h('label', null, 'To', to, h('datalist', { id: 'item-names' }, names.map((name) => h('option', { value: name })))),
    points: [['out', 'It joins the end of the other queue, which is made if there is none. No crash loses or doubles it on its way.'], PASSED, ['back', 'Undo moves it back, if it still waits there.']],
    act: async () => {
      const found = await post(queuePath(row.name, 'move'), { to: to.value, where: byId(item), expected: 1 });
      then();
      return itemResult(found.moved, `Moved 1 item to ${f.oneLine(found.to)}.`, found);
    },
  });
  to.addEventListener('input', () => shown.same(same()));
});

export const redrive = guarded(async (row) => {
  const { items } = await fresh(row);
  const origins = originsOf(row.name);
  if (!items) {
    toast(`Nothing to redrive: ${named(row)} is empty.`);
    return;
  }
  const to = origins.length === 1 ? origins[0] : '';
  const field = h('input', { class: 'field', id: 'redrive-to', value: to, placeholder: 'each to the queue that it left', autocomplete: 'off', spellcheck: false });
  field.setAttribute('list', 'redrive-names');
  confirm({
    title: `Redrive ${f.items(items)} from ${named(row)}?`,
    button: `Redrive ${f.items(items)}`,
    same: `staniel redrive ${f.shell(row.name)}${to ? '' : ' [--to QUEUE]'} -n ${items} --yes`,
    fields: to ? [] : h('label', null, `Back to${origins.length ? `, one of ${f.many(origins.length, 'queue')}` : ''}`, field, h('datalist', { id: 'redrive-names' }, origins.slice(0, 500).map((name) => h('option', { value: name })))),
    points: [
      ['out', `${f.items(items)} go back to ${to ? f.oneLine(to) : 'the queue that you name, or each to the one that it left'}, each with all its tries anew.`],
      ['stay', 'What has made them fail will do so again, if it is still there.'],
    ],
    act: async () => {
      const found = await post(queuePath(row.name, 'redrive'), { to: to || field.value, count: items });
      return result(`Redrove ${f.items(found.moved)} to ${found.to ? f.oneLine(found.to) : 'the queues that they came from'}.`, found);
    },
  });
});

const TWICE = 'Their clients are not told and may still be working: these items may be done twice.';

export const abortAll = guarded(async (row) => {
  const { open_reads: open } = await fresh(row);
  if (!open) {
    toast(`${named(row)} has no open reads.`);
    return;
  }
  confirm({
    title: `Give back ${f.many(open, 'open read')} of ${named(row)}?`,
    isDanger: true,
    button: `Give back ${f.many(open, 'read')}`,
    same: `staniel abort ${f.shell(row.name)} --all --yes`,
    points: [['back', `${f.items(open)} stand at the head again, in their old order, and are handed out next.`], ['warn', TWICE, 'hurt']],
    act: async () => `Gave back ${f.many((await post(queuePath(row.name, 'open/abort'), { expected: open })).aborted, 'open read')}.`,
  });
});

export const abortOne = guarded(async (row, read) => {
  confirm({
    title: `Give back open read ${read.xid} of ${named(row)}?`,
    isDanger: true,
    button: 'Give back 1 read',
    same: `staniel abort ${f.shell(row.name)} ${read.xid}`,
    points: [['back', `Its item (${f.bytes(read.data_bytes)}) stands at the head again and is handed out next.`], ['warn', 'Its client is not told and may still be working: this item may be done twice.', 'hurt']],
    act: async () => `Gave back ${f.many((await post(queuePath(row.name, `open/${read.xid}/abort`))).aborted, 'open read')}.`,
  });
});

const KEYS = [
  ['Find or run', 'Ctrl K'], ['Filter', '/'], ['Next, previous row', 'j k'], ['Open', '↵'], ['Operations of the row', '.'],
  ['Pause or resume', 'p'], ['Purge…', 'P'], ['Move…', 'm'], ['Undo the last one', 'u'], ['Next sort order', 's'], ['Tabs of a queue', '1 … 5'], ['Text, JSON, hex', 'v'],
  ['Look again', 'r'], ['Back, clear', 'Esc'], ['Queues', 'g q'], ['Jobs', 'g j'], ['Clients', 'g c'], ['Operations', 'g o'], ['Audit', 'g a'], ['Light or dark', 't'], ['These keys', '?'],
];

export const ask = {
  keys() {
    if (document.querySelector('dialog[open]')) return;
    const close = h('button', { class: 'btn', type: 'button', onclick: () => dialog.close() }, 'Close');
    const dialog = h('dialog', { 'aria-label': 'Keys' }, h('div', { class: 'ask' }, h('h2', null, 'Keys'), h('div', { class: 'cols' }, KEYS.map(([what, keys]) => h('div', null, what, h('span', null, keys.split(' ').map((key) => [h('kbd', null, key), ' ']))))), h('footer', null, close)));
    dialog.addEventListener('close', () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    close.focus();
  },
};

export const lock = () => {
  for (const button of document.querySelectorAll('[data-acts]')) button.disabled = store.state !== 'live';
  $('main').classList.toggle('off', store.state === 'lost');
};
