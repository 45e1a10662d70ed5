// Clients, operations and the audit log: requests to the server every few seconds while their page is shown.

import { command, fill, figure, h, head, refill, setFigure, setText } from './dom.js';
import * as f from './format.js';
import { abortClient, cancelOperation, lock, undoOperation } from './ask.js';
import { HealthBox, foot } from './overview.js';
import { get, now, store } from './store.js';

const EVERY_MS = 2000;
const CLIENTS_MAX = 1000;
const AUDIT_ROWS = 100;

// A page with a title, figures, a tool bar and a table that `draw` fills with the reply of `path()`.
function list({ title, nav, lead, path, draw, tools = [], figures = {}, same }) {
  const health = new HealthBox();
  const body = h('div', { class: 'dim' }, h('p', { class: 'note' }, 'Reading…'));
  const shown = Object.values(figures);
  const element = h('div', null, health.element, h('div', { class: 'head' }, h('h1', null, title), h('span', { class: 'muted' }, lead)),
    shown.length ? h('dl', { class: 'strip dim' }, shown.map((each) => each.element)) : '', tools.length ? h('div', { class: 'tools flat' }, tools) : '', body,
    h('p', { class: 'note bar-of' }, command(same)), foot());
  let askedAt = -1e9;
  let isAsking = false;
  let found = null;
  const view = {
    element, title, nav,
    start() { this.tick(); },
    again() { view.look(); },
    redraw() {
      if (found && draw(body, found) !== false) lock();
    },
    async look() {
      if (isAsking) return;
      isAsking = true;
      askedAt = performance.now();
      try {
        found = await get(path());
        view.redraw();
      } catch (error) {
        if (store.state === 'live') fill(body, h('p', { class: 'note' }, error.message));
      }
      isAsking = false;
    },
    tick() {
      health.tick();
      if (performance.now() - askedAt >= EVERY_MS && store.state === 'live') view.look();
    },
    key(event) {
      if (event.key === 'r') view.look();
      else if (event.key === '/') element.querySelector('input')?.focus();
      else return false;
      return true;
    },
  };
  return view;
}

const filterField = (id, placeholder, then) => {
  const field = h('input', { class: 'field long', type: 'search', id, placeholder, 'aria-label': placeholder, spellcheck: false, autocomplete: 'off', oninput: () => then(field.value.trim().toLowerCase()) });
  return field;
};
const number = (n, text = f.count(n)) => h('td', { class: n ? 'num' : 'num z' }, text);
const link = (name) => (store.rows.has(name) ? h('a', { href: `#/queues/${f.inPath(name)}` }, f.oneLine(name)) : f.oneLine(name));
const since = (atMs) => (atMs ? f.duration(Math.max(0, now() - atMs)) : '');

export function clients() {
  const figures = { all: figure('Connected'), holding: figure('Holding items'), open: figure('Open reads', 'Handed out, not yet confirmed'), waiting: figure('Waiting'), longest: figure('Held longest') };
  let wanted = '';
  const isShown = (each) => [each.address, each.name, each.user, each.protocol, each.waits_for, ...each.holds.map((held) => held.queue)].some((text) => text.toLowerCase().includes(wanted));
  const holdsOf = (each) => (each.holds.length ? h('ul', { class: 'holds' }, each.holds.map((held) => h('li', null, h('b', null, f.count(held.count)), ' of ', link(held.queue), held.since_at_ms ? h('span', { class: 'muted' }, ` for ${since(held.since_at_ms)}`) : ''))) : h('span', { class: 'faint' }, 'nothing'));
  const rowOf = (each) => h('tr', { class: 'r' }, h('td', null, h('b', null, f.oneLine(each.address) || 'not known'), each.name ? ` ${f.oneLine(each.name)}` : '', each.user ? h('span', { class: 'muted' }, ` ${f.oneLine(each.user)}`) : ''),
    h('td', { class: 'muted' }, each.protocol), h('td', { class: 'num', title: each.connected_at_ms ? f.moment(each.connected_at_ms, now()) : '' }, since(each.connected_at_ms)), h('td', { class: 'wrap' }, holdsOf(each)),
    h('td', { class: 'num' }, each.silent_ms < 0 ? '' : f.duration(each.silent_ms)),
    h('td', { class: 'wrap' }, each.waits_for ? each.waits_for.split(',').flatMap((name, at) => (at ? [', ', link(name)] : [link(name)])) : h('span', { class: 'faint' }, each.state === 'waiting' ? 'waiting' : '')), number(each.backlog),
    h('td', { class: 'num' }, each.open_reads ? h('button', { class: 'btn sm', type: 'button', 'data-acts': '', 'data-client': String(each.number), onclick: () => abortClient(each) }, 'Give back…') : ''));
  function draw(body, found) {
    const held = found.flatMap((each) => each.holds.map((one) => one.since_at_ms).filter(Boolean));
    setFigure(figures.all, f.count(found.length), found.length >= CLIENTS_MAX ? 'the first of them' : '');
    setFigure(figures.holding, f.count(found.filter((each) => each.holds.length).length));
    setFigure(figures.open, f.count(found.reduce((sum, each) => sum + each.open_reads, 0)));
    setFigure(figures.waiting, f.count(found.filter((each) => each.waits_for).length));
    setFigure(figures.longest, held.length ? since(Math.min(...held)) : 'none');
    const rows = found.filter(isShown);
    return refill(body, h('div', { class: 'wide whole' }, h('table', { class: 'list', id: 'clients' }, head([['Client', 'w5'], ['Protocol', 'w2'], ['Connected', 'num w2'], ['Holds', ''], ['Silent', 'num w2', 'Since the client last sent a request or took a reply'], ['Waits for', 'w4'], ['Backlog', 'num w2', 'Requests that were read and are not executed yet'], ['', 'num w3']]), h('tbody', null, rows.map(rowOf)))),
      rows.length < found.length ? h('p', { class: 'note' }, `${f.count(rows.length)} of ${f.many(found.length, 'client')} match.`) : '');
  }
  const view = list({
    title: 'Clients', nav: 'clients', lead: 'who is connected, from where, and what each holds', path: () => `/api/clients?limit=${CLIENTS_MAX}`, draw, figures, same: 'staniel clients',
    tools: [filterField('client-filter', 'Address, name, user or queue', (text) => { wanted = text; view.redraw(); })],
  });
  return view;
}

const ABOUT = { running: 'runs', done: 'done', cancelled: 'cancelled', failed: 'ended early' };

export function operations() {
  const figures = { running: figure('Running'), left: figure('Items left'), rate: figure('Rate'), time: figure('Time left') };
  const isRunning = (each) => each.state === 'running';
  function progress(each) {
    const part = each.total ? Math.min(1, each.done / each.total) : each.state === 'done' ? 1 : 0;
    const bar = h('i');
    bar.style.width = `${part * 100}%`;
    return h('div', { class: `progress ${each.state}`, role: 'progressbar', 'aria-valuemin': '0', 'aria-valuemax': '100', 'aria-valuenow': String(Math.floor(part * 100)), 'aria-label': `Operation ${each.id}` }, bar);
  }
  function act(each) {
    if (isRunning(each)) return h('button', { class: 'btn sm', type: 'button', 'data-acts': '', 'data-cancel': String(each.id), onclick: () => cancelOperation(each) }, 'Cancel');
    if (each.undo && each.undo_until_at_ms > now()) return h('button', { class: 'btn sm', type: 'button', 'data-acts': '', 'data-undo': String(each.undo), title: `until ${f.clock(each.undo_until_at_ms)}`, onclick: () => undoOperation(each) }, 'Undo');
    return '';
  }
  const rowOf = (each) => h('tr', { class: 'r' }, h('td', { class: 'num faint' }, each.id), h('td', null, h('b', null, each.operation)),
    h('td', null, each.queue ? link(each.queue) : '', each.target ? [' → ', link(each.target)] : each.operation === 'redrive' ? ' → home' : ''), h('td', null, progress(each)),
    h('td', { class: 'num' }, each.total ? `${f.count(each.done)} of ${f.count(each.total)}` : f.count(each.done), each.returning ? h('div', { class: 'faint' }, `${f.count(each.returning)} ahead to give back`) : ''), h('td', { class: each.rate_per_second ? 'num' : 'num z' }, `${f.rate(each.rate_per_second)}/s`),
    h('td', { class: 'num' }, isRunning(each) ? (each.returning ? 'gives back' : each.remaining_ms >= 0 ? f.duration(each.remaining_ms) : 'not known') : ABOUT[each.state] || each.state), h('td', { class: 'num', title: f.moment(each.started_at_ms, now()) }, f.moment(each.started_at_ms, now())),
    h('td', { class: 'muted wrap', title: each.why ? f.oneLine(each.why) : '' }, f.oneLine(each.by), each.why ? h('span', { class: each.state === 'failed' ? 'bad' : 'warn' }, ` ${f.oneLine(each.why)}`) : ''), h('td', { class: 'num' }, act(each)));
  function draw(body, found) {
    const all = Array.isArray(found) ? found : found.operations;
    const running = all.filter(isRunning);
    const rate = running.reduce((sum, each) => sum + each.rate_per_second, 0);
    const times = running.map((each) => each.remaining_ms);
    setFigure(figures.running, f.count(running.length));
    setFigure(figures.left, f.count(running.reduce((sum, each) => sum + Math.max(0, each.total - each.done), 0)));
    setFigure(figures.rate, `${f.rate(rate)}/s`);
    setFigure(figures.time, !running.length ? 'none' : times.some((ms) => ms < 0) ? 'not known' : f.duration(Math.max(...times)));
    if (!all.length) return refill(body, h('p', { class: 'note' }, 'No operation runs, and none has ended since the server was started. A move, a purge, a redrive, a deletion or an undo is shown here while it runs, and goes on when this page is closed.'));
    return refill(body, h('div', { class: 'wide whole' }, h('table', { class: 'list', id: 'operations' }, head([['Id', 'num w1'], ['Operation', 'w2'], ['Queue', ''], ['Progress', 'w6'], ['Items', 'num w6'], ['Rate', 'num w2'], ['Time left', 'num w2'], ['Began', 'num w3'], ['By', 'w4'], ['', 'num w2']]), h('tbody', null, all.map(rowOf)))));
  }
  return list({ title: 'Operations', nav: 'operations', lead: 'what runs, how far it is, and what ended lately', path: () => '/api/operations', draw, figures, same: 'staniel operations' });
}

export function audit() {
  let offset = 0;
  let wanted = '';
  let told = 0;
  const place = h('span', { class: 'muted' });
  const turn = (by) => { offset = Math.max(0, offset + by * AUDIT_ROWS); view.look(); };
  const later = h('button', { class: 'btn quiet', type: 'button', id: 'later', onclick: () => turn(-1) }, 'Newer');
  const earlier = h('button', { class: 'btn quiet', type: 'button', id: 'earlier', onclick: () => turn(1) }, 'Older');
  const targetOf = ({ operation, target }) => (!target ? '' : operation === 'move' || operation === 'redrive' ? [' → ', link(target)] : operation === 'undo' || operation === 'cancel' ? `, operation ${target}` : `: ${f.oneLine(target)}`);
  const isShown = (each) => [each.operation, each.queue, each.target, each.client, each.user, each.why, each.result].some((text) => String(text).toLowerCase().includes(wanted));
  const rowOf = (each) => h('tr', { class: 'r' }, h('td', { class: 'num faint' }, each.id), h('td', { class: 'num' }, f.moment(each.at_ms, now())), h('td', null, h('b', null, each.operation)),
    h('td', null, each.queue ? link(each.queue) : 'the server', targetOf(each)), number(each.items),
    h('td', { class: each.result === 'done' ? '' : each.result === 'begun' ? 'muted' : 'warn', title: f.oneLine(each.why) }, f.oneLine(each.result)), h('td', { class: 'wrap' }, f.oneLine(each.client || 'the server'), each.user ? h('b', null, ` ${f.oneLine(each.user)}`) : '', h('span', { class: 'muted' }, ` ${each.protocol}`)),
    h('td', { class: 'muted wrap' }, f.oneLine(each.why), each.left_out ? ` ${f.many(each.left_out, 'line')} before this one left out` : ''));
  function draw(body, found) {
    told = found.length;
    later.disabled = !offset;
    earlier.disabled = told < AUDIT_ROWS;
    setText(place, offset ? `from the ${f.count(offset + 1)}th on` : 'the newest first');
    if (!found.length) return refill(body, h('p', { class: 'note' }, 'No line: what clients and operators do with whole queues and with the server stands here.'));
    const rows = found.filter(isShown);
    return refill(body, h('div', { class: 'wide whole' }, h('table', { class: 'list', id: 'audit' }, head([['Id', 'num w1'], ['When', 'num w6'], ['Operation', 'w2'], ['About', ''], ['Items', 'num w2'], ['Result', 'w2'], ['By', 'w5'], ['Why', 'w5']]), h('tbody', null, rows.map(rowOf)))),
      rows.length < found.length ? h('p', { class: 'note' }, `${f.count(rows.length)} of these ${f.many(found.length, 'line')} match.`) : '');
  }
  const view = list({
    title: 'Audit', nav: 'audit', lead: 'what was done to queues and the server, by whom, and what came of it', path: () => `/api/audit?offset=${offset}&limit=${AUDIT_ROWS}`, draw, same: 'staniel audit',
    tools: [filterField('audit-filter', 'Operation, queue or client', (text) => { wanted = text; view.redraw(); }), later, earlier, place],
  });
  return view;
}
