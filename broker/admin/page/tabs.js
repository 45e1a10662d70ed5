// The other tabs of a queue: open reads, waiting clients, the files of its journal, its settings.

import { command, fill, h, head, icon, refill } from './dom.js';
import * as f from './format.js';
import { abortAll, abortOne } from './ask.js';
import { get, now, queuePath, store } from './store.js';

const EVERY_MS = 2000;
const SHOWN_MAX = 1000;

// Requests `path` while the tab is shown, and draws the reply. A server that takes longer than EVERY_MS gets no
// second request meanwhile.
function live(name, path, element, draw) {
  let askedAt = -1e9;
  let isAsking = false;
  let isOver = false;
  async function look() {
    if (isAsking) return;
    isAsking = true;
    askedAt = performance.now();
    try {
      const found = await get(queuePath(name, path));
      if (!isOver) draw(found);
    } catch (error) {
      if (!isOver) fill(element, h('p', { class: 'note' }, error.message));
    }
    isAsking = false;
  }
  return {
    element,
    start: look,
    stop() { isOver = true; },
    tick() { if (performance.now() - askedAt >= EVERY_MS && store.state === 'live') look(); },
    key(event) {
      if (event.key !== 'r') return false;
      look();
      return true;
    },
  };
}

export function openReads(name, row) {
  const element = h('div');
  const opened = new Set();
  let reads = [];
  function draw(found = reads) {
    reads = found;
    if (!reads.length) {
      fill(element, h('p', { class: 'note' }, 'No open reads: every item that was handed out has been confirmed, or has come back.'));
      return;
    }
    const holders = Map.groupBy ? Map.groupBy(reads, (read) => read.client) : grouped(reads);
    const rows = [...holders].flatMap(([client, held]) => [holderRow(client, held), ...(opened.has(client) ? held.map((read) => readRow(read)) : [])]);
    const ends = reads[0].times_out_at_ms ? `, or its time of ${f.duration(reads[0].times_out_at_ms - reads[0].opened_at_ms)} is over (open_transaction_timeout)` : '';
    refill(element, h('p', { class: 'lead' }, `Handed out and not yet confirmed. An item comes back to the head when its client leaves or aborts${ends}.`),
      h('div', { class: 'wide' }, h('table', { class: 'list' }, head([['Client', ''], ['Open', 'num w2'], ['Held longest', 'num w3'], ['Next comes back', 'num w3'], ['Most tries', 'num w2'], ['Oldest item', 'num w3'], ['Bytes', 'num w2'], ['', 'num w3']]), h('tbody', null, rows))),
      reads.length >= SHOWN_MAX ? h('p', { class: 'note' }, `The ${SHOWN_MAX} oldest are shown.`) : '',
      h('p', { class: 'note bar-of' }, h('button', { class: 'btn danger', type: 'button', id: 'abort-all', 'data-acts': '', onclick: () => row() && abortAll(row()) }, 'Give back all…'), command(`staniel open ${f.shell(name)}`)));
  }
  function holderRow(client, held) {
    const back = held.map((read) => read.times_out_at_ms).filter(Boolean);
    const isOpen = opened.has(client);
    const toggle = () => { if (isOpen) opened.delete(client); else opened.add(client); draw(); };
    return h('tr', { class: 'r' }, h('td', null, h('button', { class: 'btn quiet sm toggle', type: 'button', 'aria-expanded': String(isOpen), 'aria-label': `Reads of ${f.oneLine(client) || 'a client that is not connected'}`, onclick: toggle }, icon(isOpen ? 'down' : 'right')), h('b', null, f.oneLine(client) || 'not connected')),
      h('td', { class: 'num' }, f.count(held.length)), h('td', { class: 'num' }, f.duration(Math.max(...held.map((read) => now() - read.opened_at_ms)))),
      h('td', { class: back.length ? 'num' : 'num faint' }, back.length ? f.duration(Math.max(0, Math.min(...back) - now())) : 'when it leaves'),
      h('td', { class: 'num' }, f.count(Math.max(...held.map((read) => read.deliveries)))), h('td', { class: 'num' }, f.duration(Math.max(...held.map((read) => read.age_ms)))),
      h('td', { class: 'num' }, f.bytes(held.reduce((sum, read) => sum + read.data_bytes, 0))), h('td'));
  }
  function readRow(read) {
    return h('tr', { class: 'r sub' }, h('td', { class: 'mono' }, `read ${read.xid}`), h('td'), h('td', { class: 'num' }, f.duration(now() - read.opened_at_ms)),
      h('td', { class: 'num faint' }, read.times_out_at_ms ? f.duration(Math.max(0, read.times_out_at_ms - now())) : ''), h('td', { class: 'num' }, f.count(read.deliveries)), h('td', { class: 'num' }, f.duration(read.age_ms)),
      h('td', { class: 'num' }, f.bytes(read.data_bytes)), h('td', { class: 'num' }, h('button', { class: 'btn sm', type: 'button', 'data-acts': '', 'data-xid': String(read.xid), onclick: () => row() && abortOne(row(), read) }, 'Give back…')));
  }
  return live(name, 'open', element, draw);
}

function grouped(reads) {
  const found = new Map();
  for (const read of reads) found.set(read.client, [...(found.get(read.client) || []), read]);
  return found;
}

export function waiters(name, row) {
  const element = h('div');
  return live(name, 'waiters', element, (found) => {
    if (!found.length) {
      fill(element, h('p', { class: 'note' }, row()?.isUnread ? 'No client waits, and none reads this queue. ' : 'No client waits. Those that ask with a time to wait while the queue is empty are listed here.'));
      return;
    }
    fill(element, h('p', { class: 'lead' }, 'Served in this order, first come, first served.', row()?.paused !== 'none' ? ' Gets are paused: they go on waiting, and Resume serves them at once.' : ''),
      h('div', { class: 'wide narrow' }, h('table', { class: 'list' }, head([['#', 'num w1'], ['Client', '']]), h('tbody', null, found.map((each, at) => h('tr', { class: 'r' }, h('td', { class: 'num faint' }, f.count(at + 1)), h('td', null, f.oneLine(each.client) || 'not known')))))));
  });
}

export function journal(name) {
  const element = h('div');
  let told = '';
  return live(name, 'journal', element, (found) => {
    const key = JSON.stringify(found);
    if (key === told) return;
    if (element.matches(':active')) return; // the next draw is soon enough
    told = key;
    if (!found.files.length) {
      fill(element, h('p', { class: 'note' }, 'No journal: keep_journal = false. A restart empties this queue.'));
      return;
    }
    const rows = [];
    const blocks = [];
    const light = (at) => [blocks, rows].forEach((list) => list.forEach((each, index) => each.classList.toggle(list === rows ? 'at' : 'hi', index === at)));
    found.files.forEach((file, at) => {
      const part = file.items ? file.unread_items / file.items : 0;
      const block = h('button', { type: 'button', class: `block${file.state === 'written to' ? ' cur' : ''}${file.is_damaged ? ' hurt' : ''}`, 'aria-label': `${f.oneLine(file.name)}: ${file.state}, ${f.bytes(file.bytes)}, ${f.items(file.unread_items)} unread`, onpointerenter: () => light(at), onfocus: () => light(at), onblur: () => light(-1) }, h('i'), file.unsynced_bytes ? h('u') : '');
      block.style.flexGrow = String(Math.max(1, file.bytes));
      block.firstChild.style.width = `${part * 100}%`;
      if (file.unsynced_bytes) block.lastChild.style.width = `max(4px, ${(file.unsynced_bytes / Math.max(1, file.bytes)) * 100}%)`;
      blocks.push(block);
      rows.push(h('tr', { class: 'r' }, h('td', { class: 'mono' }, f.oneLine(file.name)), h('td', { class: file.state === 'written to' ? '' : 'muted' }, file.state, file.is_damaged ? h('span', { class: 'tag bad' }, 'damaged') : ''), h('td', { class: 'num' }, f.bytes(file.bytes)),
        h('td', { class: file.items ? 'num' : 'num z' }, f.count(file.items)), h('td', { class: file.unread_items ? 'num' : 'num z' }, f.count(file.unread_items)), h('td', { class: file.unsynced_bytes ? 'num warn' : 'num z' }, f.bytes(file.unsynced_bytes))));
    });
    const key_ = (className, text) => h('span', null, h('i', { class: className }), text);
    refill(element, h('p', { class: 'lead' }, h('b', null, `${f.bytes(found.bytes)} in ${f.many(found.files_total, 'file')}`), `, ${found.format === 'none' ? '' : `in ${found.format === 'kestrel' ? 'Kestrel’s' : 'libkestrel’s'} format, `}in ${f.oneLine(found.folder)}.`, found.unsynced_bytes ? ` A power cut could take ${f.bytes(found.unsynced_bytes)} of it.` : ' All of it is on the disk.'),
      h('div', { class: 'files', role: 'group', 'aria-label': 'Journal files, the oldest first', onpointerleave: () => light(-1) }, blocks), h('div', { class: 'axis' }, h('span', null, 'oldest'), h('span', null, 'newest')),
      h('div', { class: 'legend' }, key_('k-read', 'read, can go'), key_('k-unread', 'unread'), key_('k-current', 'unread, file written to'), key_('k-unsynced', 'not yet on disk')),
      h('div', { class: 'wide' }, h('table', { class: 'list' }, head([['File', ''], ['State', 'w4'], ['Size', 'num w2'], ['Items', 'num w2'], ['Unread', 'num w2'], ['Not on disk', 'num w2']]), h('tbody', null, rows))),
      h('p', { class: 'note bar-of' }, command(`staniel journal verify ${f.shell(store.server?.spool || 'spool')} --queue ${f.shell(name)}`), 'reads every record, once the server is stopped.'));
  });
}

function settingText(key, value) {
  if (typeof value === 'boolean') return value ? 'true' : 'false';
  if (typeof value !== 'number') return f.oneLine(typeof value === 'string' ? value : JSON.stringify(value));
  if (/_size/.test(key)) return f.bytes(value);
  if (/age|timeout|delay|sync/.test(key)) return value < 1000 ? `${value} ms` : f.duration(value);
  return f.count(value);
}

export function settings(name) {
  const element = h('div');
  return {
    element,
    async start() {
      try {
        const found = await get(queuePath(name, 'config'));
        fill(element, h('p', { class: 'lead' }, 'As resolved from the configuration: what the queue’s own section says, else [default].'),
          h('div', { class: 'wide narrow' }, h('table', { class: 'list' }, head([['Setting', ''], ['Value', '']]), h('tbody', null, Object.entries(found).map(([key, value]) => h('tr', { class: 'r' }, h('td', { class: 'mono' }, key), h('td', null, settingText(key, value))))))),
          h('p', { class: 'note bar-of' }, command('staniel config show FILE'), 'shows all of a file;', command('staniel reload'), 'has it read again.'));
      } catch (error) {
        fill(element, h('p', { class: 'note' }, error.message));
      }
    },
  };
}
