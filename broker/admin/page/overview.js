// All queues: what needs attention first, sums, and a table of which only the rows on the screen exist.

import { Chart, History, drawSoon, sparkPath } from './charts.js';
import { command, fill, figure, h, icon, refill, say, setAttribute, setClass, setFigure, setText, svg } from './dom.js';
import * as f from './format.js';
import { ask, move, pause, purge } from './ask.js';
import { ClusterBox } from './cluster.js';
import { openPalette } from './palette.js';
import { get, isDeadLetters, needsYou, now, store } from './store.js';
import { go } from './main.js';

const SETTLE_MS = 4000; // between changes of the rows' order
const SPARE_ROWS = 6;
const SHOWN_REASONS = 8;
const FILTERS = {
  all: ['All', () => true],
  attention: ['Attention', needsYou],
  grows: ['Growing', (row) => row.trend === 'grows'],
  unread: ['No reader', (row) => row.isUnread],
  paused: ['Paused', (row) => row.paused !== 'none'],
  dead: ['Dead letters', (row) => isDeadLetters(row.name)],
};
const TREND_ORDER = { empty: 0, drains: 1, steady: 2, paused: 3, grows: 4, 'no reader': 5 };
const COLUMNS = [
  ['mark', '', 'mark'],
  ['name', 'Queue', 'c-nm', (row) => row.name],
  ['spark', 'Depth, 10 min', 'c-sp'],
  ['items', 'Items', 'num c-it', (row) => row.items],
  ['bytes', 'Size', 'num c-by', (row) => row.bytes],
  ['age', 'Oldest', 'num c-ag', (row) => (row.oldestAt ? now() - row.oldestAt : 0), 'Age of the oldest item that can be handed out'],
  ['in', 'In /s', 'num c-in', (row) => row.inSmooth],
  ['out', 'Out /s', 'num c-ou', (row) => row.outSmooth],
  ['trend', 'Trend', 'num c-dr', (row) => TREND_ORDER[row.trend]],
  ['open', 'Open', 'num c-op', (row) => row.open, 'Open reads: handed out, not yet confirmed'],
  ['waiters', 'Waiters', 'num c-wt', (row) => row.waiters],
  ['unsynced', 'Unsynced', 'num c-un', (row) => row.unsynced, 'What a power cut could take: written, and not yet forced to the disk'],
  ['journal', 'Journal', 'num c-jr', (row) => row.journal],
  ['actions', '', 'c-ac'],
];
const NUMBERS = { items: 'items', open: 'open', waiters: 'waiters', in: 'inSmooth', out: 'outSmooth', bytes: 'bytes', unsynced: 'unsynced' };
const TIMES = { s: 1e3, m: 6e4, h: 36e5, d: 864e5 };
const COUNTS = { k: 1e3, m: 1e6, g: 1e9 };
const SIZES = { k: 2 ** 10, m: 2 ** 20, g: 2 ** 30 };
const UNITS = { age: TIMES, bytes: SIZES, unsynced: SIZES };
const keep = { sort: 'level', direction: -1, text: '', filter: 'all', at: null, y: 0 };

const SOON_MS = 30 * 864e5;
export const fullInMs = (row) => (row.max > 0 && row.net > 0 ? (Math.max(0, row.max - row.items) / row.net) * 1000 : Infinity);
export const isSoon = (ms) => ms < SOON_MS;

const attention = (row) => row.level * 1e15 + (row.paused !== 'none' ? 1e14 : 0) + (needsYou(row) ? 1e13 : 0) + Math.min(row.items, 1e12);
const shownBytes = (n) => (n ? f.bytes(n) : '0');

// Whether that reason (docs/alerts/README.md#reasons) applies to the queue.
export const isAbout = (row, reason) => (reason === 'queues_paused' ? row.paused !== 'none' : reason === 'queues_unreadable' ? row.unreadable : row.reasons.includes(reason));

// A word is a part of the name, a reason (is:queue_full), or a comparison: age>5m items>1k waiters=0. 5m are five minutes of an age, five million
// items, five megabytes.
function matches(row, words) {
  return FILTERS[keep.filter][1](row) && words.every((word) => {
    if (word.startsWith('is:')) return isAbout(row, word.slice(3));
    const found = word.match(/^(items|age|open|waiters|in|out|bytes|unsynced)([<>=])(\d+(?:\.\d+)?)([smhdkg])?$/);
    const units = found && (UNITS[found[1]] || COUNTS);
    if (!found || (found[4] && !units[found[4]])) return row.name.toLowerCase().includes(word);
    const [, name, sign, digits, unit] = found;
    const wanted = digits * (units[unit] || (name === 'age' ? 1e3 : 1));
    const is = name === 'age' ? (row.oldestAt ? now() - row.oldestAt : 0) : row[NUMBERS[name]];
    return sign === '>' ? is > wanted : sign === '<' ? is < wanted : Math.round(is) === wanted;
  });
}

export function trendText(row) {
  if (row.trend === 'grows') return row.net > 0 ? `+${f.rate(row.net)}/s` : 'grows'; // over minutes, though not now
  if (row.trend === 'drains') return `empty in ${f.duration((row.items / -row.net) * 1000)}`;
  return row.trend === 'empty' ? '' : row.trend;
}

class TableRow {
  constructor(table) {
    this.table = table;
    this.row = null;
    this.version = -1;
    this.state = h('span');
    this.link = h('a', { class: 'name', tabIndex: -1 }, this.stem = h('span', { class: 'stem' }), this.leaf = h('span', { class: 'leaf' }));
    this.tag = h('span', { class: 'tag' });
    this.line = svg('path', { class: 'l' });
    this.area = svg('path', { class: 'a' });
    this.spark = svg('svg', { viewBox: '0 0 100 20', preserveAspectRatio: 'none', 'aria-hidden': 'true', class: 'spark' }, this.area, this.line);
    this.cells = {};
    this.element = h('tr', { class: 'r' });
    for (const [key, , className] of COLUMNS) {
      const cell = h('td', { class: className, role: 'gridcell' });
      this.cells[key] = cell;
      this.element.append(cell);
    }
    this.cells.mark.append(this.state);
    this.cells.name.append(h('div', { class: 'nm' }, this.link, this.tag));
    this.cells.spark.append(this.spark);
    this.cells.actions.append(h('button', {
      class: 'btn quiet sm act', type: 'button', tabIndex: -1, 'aria-label': 'Operations',
      onclick: (event) => { event.stopPropagation(); openPalette(`${this.row.name} `, this.row.name); },
    }, icon('more')));
    this.phone = h('td', { class: 'c-ph', role: 'gridcell' });
    this.element.append(this.phone);
    this.element.addEventListener('click', (event) => {
      if (!event.target.closest('a,button') && !String(getSelection())) go('queues', this.row.name);
    });
  }

  number(key, value, text, className) {
    setText(this.cells[key], value < 0.005 ? '0' : text);
    setClass(this.cells[key], className + (value < 0.005 ? ' z' : ''));
  }

  show(row, at) {
    if (this.row !== row) {
      this.row = row;
      this.version = -1;
      const plus = row.name.lastIndexOf('+');
      setText(this.stem, plus > 0 ? f.oneLine(row.name.slice(0, plus)) : '');
      setText(this.leaf, f.oneLine(plus > 0 ? row.name.slice(plus) : row.name));
      this.link.href = `#/queues/${f.inPath(row.name)}`;
      this.link.title = f.oneLine(row.name);
    }
    this.element.id = `row-${at}`;
    setAttribute(this.element, 'aria-rowindex', String(at + 2));
    const isCurrent = keep.at === row.name;
    setClass(this.element, isCurrent ? 'r at' : 'r');
    setAttribute(this.element, 'aria-selected', String(isCurrent));
    const age = row.oldestAt ? now() - row.oldestAt : 0;
    const isOld = row.level && age > 600_000;
    this.number('age', row.items ? age : 0, f.duration(age), `num c-ag${isOld ? ' warn' : ''}`);
    if (this.version === row.version) return;
    this.version = row.version;
    this.showState(row);
    this.showSpark(row);
    this.number('items', row.items, f.short(row.items), 'num c-it');
    this.number('bytes', row.bytes, f.bytes(row.bytes), 'num c-by');
    this.number('in', row.inSmooth, f.rate(row.inSmooth), 'num c-in');
    this.number('out', row.outSmooth, f.rate(row.outSmooth), `num c-ou${row.reasons.includes('queue_not_read') ? ' warn' : ''}`);
    setText(this.cells.trend, trendText(row));
    setClass(this.cells.trend, `num c-dr${row.level ? ' warn' : row.trend === 'drains' || row.trend === 'grows' ? '' : ' faint'}`);
    this.number('open', row.open, f.count(row.open), 'num c-op');
    this.number('waiters', row.waiters, f.count(row.waiters), 'num c-wt');
    this.number('unsynced', row.unsynced, f.bytes(row.unsynced), 'num c-un');
    if (row.sync === 'none') setText(this.cells.unsynced, 'no journal');
    this.number('journal', row.journal, f.bytes(row.journal), 'num c-jr');
    setText(this.phone, [row.items ? `oldest ${f.duration(age)}` : 'empty', `in ${f.rate(row.inSmooth)}`, `out ${f.rate(row.outSmooth)}`, row.open ? `open ${row.open}` : ''].filter(Boolean).join('   '));
    setClass(this.phone, row.level ? 'c-ph warn' : 'c-ph');
  }

  showState(row) {
    const name = row.level === 2 ? 'bad' : row.paused !== 'none' ? 'pause' : row.level ? 'warn' : '';
    if (this.state.dataset.name !== name) {
      this.state.dataset.name = name;
      fill(this.state, name && icon(name, name === 'pause' ? 'mk p' : name === 'bad' ? 'mk bad' : 'mk'));
    }
    const told = row.paused === 'all' ? 'paused' : row.paused !== 'none' ? `${row.paused} paused` : row.why || (isDeadLetters(row.name) ? 'dead letters' : row.sync === 'none' ? 'memory only' : '');
    setText(this.tag, told);
    setClass(this.tag, row.level ? 'tag warn' : 'tag');
    this.tag.hidden = !told;
  }

  showSpark(row) {
    const { line, first, isFlat } = sparkPath(row);
    setAttribute(this.spark, 'class', `spark${row.level ? ' hot' : ''}${isFlat ? ' nil' : ''}`);
    this.line.setAttribute('d', line);
    this.area.setAttribute('d', `${line}L100 19L${first} 19Z`);
  }
}

// Orders two pairs of a value and its row.
const compare = ([a, one], [b, other]) => (a < b ? -1 : a > b ? 1 : 0) * keep.direction || (one.name < other.name ? -1 : 1);
const ordered = (rows, value) => rows.map((row) => [value(row), row]).sort(compare).map(([, row]) => row);

// The rows of `found` in the order of `list`; new rows are sorted in among them.
function joined(list, found, value) {
  const there = new Set(found);
  const kept = list.filter((row) => there.delete(row));
  if (!there.size) return kept;
  const added = ordered([...there], value);
  const all = [];
  for (const row of kept) {
    while (added.length && compare([value(added[0]), added[0]], [value(row), row]) < 0) all.push(added.shift());
    all.push(row);
  }
  return [...all, ...added];
}

class Table {
  constructor() {
    this.list = [];
    this.isWhole = false;
    this.rows = [];
    this.isHeld = false;
    this.sortedAt = -1e9;
    this.top = 0;
    this.heads = COLUMNS.map(([key, label, className, value, title]) => h('th', { class: className, scope: 'col', title, role: 'columnheader' }, value
      ? h('button', { type: 'button', 'data-sort': key, onclick: () => this.sortBy(key) }, label)
      : key === 'spark' ? label : h('span', { class: 'sr' }, key === 'mark' ? 'State' : 'Operations')));
    this.before = h('tr', { class: 'pad', role: 'presentation' }, h('td', { colSpan: COLUMNS.length }));
    this.after = h('tr', { class: 'pad', role: 'presentation' }, h('td', { colSpan: COLUMNS.length }));
    this.body = h('tbody', { role: 'rowgroup' }, this.before, this.after);
    this.element = h('table', { class: 'q grid', id: 'queues', role: 'grid', tabIndex: 0, 'aria-label': 'Queues' }, h('thead', { class: 'stick', role: 'rowgroup' }, h('tr', { role: 'row' }, this.heads)), this.body);
    this.none = h('p', { class: 'note', hidden: true });
    this.order = h('span', { id: 'order' });
    this.element.addEventListener('focus', () => {
      if (!keep.at && this.list[0]) keep.at = this.list[0].name;
      this.paint();
    });
    this.body.addEventListener('pointerenter', () => { this.isHeld = true; });
    this.body.addEventListener('pointerleave', () => { this.isHeld = false; });
  }

  sortBy(key) {
    const first = key === 'name' ? 1 : -1;
    keep.direction = keep.sort === key ? -keep.direction : first;
    keep.sort = key;
    this.sort(true);
    this.paint();
    say(`Sorted by ${key}, ${keep.direction > 0 ? 'smallest' : 'largest'} first`);
  }

  // Rows keep their places for a while, and as long as the pointer or the focus is on them. The set of rows is
  // always up to date; until all have arrived there is no order to keep.
  sort(isForced) {
    const isStill = this.isWhole && (this.isHeld || document.activeElement === this.element);
    const words = keep.text.toLowerCase().split(/\s+/).filter(Boolean);
    const value = keep.sort === 'level' ? attention : COLUMNS.find(([key]) => key === keep.sort)[3];
    const found = [];
    for (const row of store.rows.values()) if (matches(row, words)) found.push(row);
    const told = `${f.count(found.length)} of ${f.count(store.rows.size)}${keep.sort === 'level' ? ', what needs you first' : ''}`;
    const isLate = !this.isWhole || performance.now() - this.sortedAt >= SETTLE_MS;
    if (isForced || (isLate && !isStill)) {
      this.sortedAt = performance.now();
      this.list = ordered(found, value);
      this.heads.forEach((head, at) => {
        if (COLUMNS[at][0] === keep.sort) head.setAttribute('aria-sort', keep.direction < 0 ? 'descending' : 'ascending');
        else head.removeAttribute('aria-sort');
      });
    } else this.list = joined(this.list, found, value);
    this.isWhole = store.isWhole;
    setText(this.order, isStill && !isForced ? `${told}, order held` : told);
    setAttribute(this.element, 'aria-rowcount', String(this.list.length + 1));
    this.none.hidden = this.list.length > 0;
    setText(this.none, `No queue matches. ${f.many(store.rows.size, 'queue is', 'queues are')} hidden by the filter; Esc clears it.`);
  }

  get rowHeight() { return innerWidth <= 640 ? 58 : 30; }

  paint() {
    if (!this.element.isConnected) return;
    this.top = this.element.getBoundingClientRect().top + scrollY;
    const height = this.rowHeight;
    const first = Math.max(0, Math.floor((scrollY - this.top - 30) / height / 4) * 4 - 4);
    const from = Math.min(first, Math.max(0, this.list.length - 1));
    const count = Math.max(0, Math.min(this.list.length - from, Math.ceil(innerHeight / height) + 2 * SPARE_ROWS));
    while (this.rows.length < count) {
      const made = new TableRow(this);
      made.element.setAttribute('role', 'row');
      this.rows.push(made);
      this.body.insertBefore(made.element, this.after);
    }
    this.rows.forEach((each, at) => {
      const row = at < count ? this.list[from + at] : null;
      each.element.hidden = !row;
      if (row) each.show(row, from + at);
      else each.element.removeAttribute('id');
    });
    this.before.firstChild.style.height = `${from * height}px`;
    this.before.hidden = !from;
    const rest = this.list.length - from - count;
    this.after.firstChild.style.height = `${Math.max(0, rest) * height}px`;
    this.after.hidden = rest <= 0;
    const current = this.list.findIndex((row) => row.name === keep.at);
    if (current >= 0) this.element.setAttribute('aria-activedescendant', `row-${current}`);
    else this.element.removeAttribute('aria-activedescendant');
  }

  move(by) {
    const at = this.list.findIndex((row) => row.name === keep.at);
    const next = Math.min(this.list.length - 1, Math.max(0, at + by));
    if (!this.list[next]) return;
    keep.at = this.list[next].name;
    this.element.focus({ preventScroll: true });
    const y = this.top + 30 + next * this.rowHeight;
    if (y < scrollY + 140) scrollTo(0, y - 140);
    else if (y > scrollY + innerHeight - 2 * this.rowHeight) scrollTo(0, y - innerHeight + 2 * this.rowHeight);
    this.paint();
  }

  get current() { return this.list.find((row) => row.name === keep.at); }
}

// Health, on every page.

// The text of a reason for one queue, with its numbers.
function ofQueue(reason, row) {
  const text = {
    queue_not_read: `holds ${f.items(row.items)} and nothing reads it. The oldest waits since ${f.moment(row.oldestAt, now())}.`,
    queue_grows: `takes in ${f.rate(row.inSmooth)}/s and hands out ${f.rate(row.outSmooth)}/s.${fullInMs(row) < SOON_MS ? ` At this pace it is full in ${f.duration(fullInMs(row))}.` : ''}`,
    queue_full: `holds ${f.items(row.items)}, is full and refuses puts.`,
    queue_filling: `holds ${f.items(row.items)}${row.max > 0 ? ` of ${f.count(row.max)}` : ''}: puts are refused once it is full.`,
    dead_letters: `holds ${f.many(row.items, 'dead letter')}.`,
  }[reason.name] || reason.text;
  const mend = {
    queue_grows: `start more consumers; staniel open ${f.shell(row.name)} shows who holds its items`,
    dead_letters: `mend the workers, then: staniel redrive ${f.shell(row.name)}`,
  }[reason.name] || reason.mend;
  return { ...reason, text, mend, queue: row.name, count: 1 };
}

// "start it again, then: staniel reload" in two: the step, and the command at its end.
function mendOf(text) {
  const found = text.match(/(?:^|[:;] )(staniel .+)$/);
  return found ? [text.slice(0, text.length - found[0].length), found[1]] : [text, ''];
}

export class HealthBox {
  // `queue`: its page shows only reasons about it, and those that keep clients from being served.
  constructor(queue = null) {
    this.queue = queue;
    this.element = h('section', { class: 'health', 'aria-label': 'Health' });
    this.isOpen = innerWidth > 640;
    this.key = '';
    this.said = '';
  }

  reasons() {
    const found = (store.health?.reasons || []).map((reason) => ({ ...reason, level: reason.severity === 'warning' ? 1 : 2 }));
    if (this.queue === null) return found;
    const row = store.rows.get(this.queue);
    const isWanted = (reason) => (reason.queues.length ? row && isAbout(row, reason.name) && reason.name !== 'queues_paused' : reason.level === 2);
    return found.filter(isWanted).map((reason) => (reason.queues.length ? ofQueue(reason, row) : reason));
  }

  // How much needs an operator: queues as the filter counts them, and reasons about no queue in the table.
  needs(found) {
    if (this.queue !== null) return f.many(found.length, 'thing needs', 'things need');
    let queues = 0;
    for (const row of store.rows.values()) queues += needsYou(row) ? 1 : 0;
    const others = found.filter((reason) => !reason.queues.some((name) => store.rows.has(name))).length;
    if (!queues && others) return f.many(others, 'thing beside the queues needs', 'things beside the queues need');
    if (!queues) return f.many(found.length, 'thing needs', 'things need'); // the rows come with the next event
    return others ? `${f.many(queues, 'queue')} and ${f.many(others, 'other thing')} need` : f.many(queues, 'queue needs', 'queues need');
  }

  tick() {
    const isLost = store.state !== 'live';
    const found = store.health ? this.reasons() : [];
    this.element.hidden = !store.health || (this.queue !== null && !found.length);
    if (this.element.hidden) return;
    const shown = found.slice(0, SHOWN_REASONS);
    const { ready, ready_for_puts: isWhole } = store.health;
    const worst = !isWhole ? 2 : found.length ? 1 : 0;
    const title = (isLost ? 'Last known: ' : '') + (!ready ? 'Not ready' : !isWhole ? 'Some requests are refused' : found.length ? `Ready. ${this.needs(found)} you` : 'Ready');
    const unsynced = store.totals?.unsynced_bytes || 0;
    const more = worst ? '' : !store.rows.size ? 'Nothing is stored yet.' : unsynced ? `${f.bytes(unsynced)} is not on the disk yet, all of it in queues whose sync_journal allows that, or not acknowledged yet.` : 'Everything acknowledged is on the disk.';
    const key = JSON.stringify([shown, title, more, this.isOpen]);
    if (key === this.key) return;
    if (this.element.matches(':active')) return;
    this.key = key;
    setClass(this.element, `health dim${worst === 2 ? ' bad' : worst ? ' warn' : ''}`);
    const toggle = h('button', { class: 'btn quiet sm', type: 'button', 'aria-expanded': String(this.isOpen), onclick: () => { this.isOpen = !this.isOpen; this.key = ''; this.tick(); } }, this.isOpen ? 'Hide' : 'Show');
    refill(this.element, h('header', null, h('b', { class: worst === 2 ? 'bad' : '' }, title), h('span', { class: 'muted' }, more), found.length ? toggle : ''),
      found.length && this.isOpen ? h('ol', null, shown.map((reason) => this.reason(reason)), found.length > shown.length ? h('li', null, icon('more', 'faint'), h('span', { class: 'muted' }, `and ${f.count(found.length - shown.length)} more: `, command('staniel health'))) : '') : '');
    if (this.said && this.said !== title) say(title);
    this.said = title;
  }

  reason({ name, level, text, mend, queue, queues, count }) {
    const [what, how] = mendOf(mend);
    const isMany = this.queue === null && count > 1;
    const only = this.queue === null && count === 1 && queues.length ? queues[0] : '';
    return h('li', null, icon(level === 2 ? 'bad' : 'warn', level === 2 ? 'mk bad' : 'mk'),
      h('span', null, isMany ? [h('b', null, f.count(count)), ' '] : '', queue ? [h('a', { href: `#/queues/${f.inPath(queue)}` }, h('b', null, f.oneLine(queue))), ' '] : '', f.oneLine(text), ' ',
        isMany ? h('button', { class: 'link', type: 'button', 'data-reason': name, onclick: () => showReason(name) }, 'Show them') : only && store.rows.has(only) ? h('a', { class: 'link', href: `#/queues/${f.inPath(only)}` }, 'Open') : '',
        what ? h('span', { class: 'muted small what' }, ` ${f.oneLine(what)}`) : ''),
      how ? command(how) : '');
  }
}

export const foot = () => fillFoot(h('footer', { class: 'foot' }));

export function fillFoot(element) {
  const { server } = store;
  return !server ? element : fill(element,
    h('span', null, `Staniel ${server.version}, ${server.build}`), h('span', null, `spool ${f.oneLine(server.spool)}`),
    h('span', null, `up since ${f.moment(server.started_at_ms, now())}`), h('span', null, `times are ${f.zone()}`),
    h('button', { class: 'link', type: 'button', onclick: () => ask.keys() }, 'Keys: ?'));
}

// The overview with only the queues of one reason.
let filterBy = null;
export function showReason(name) {
  keep.text = `is:${name}`;
  if (location.hash.replace(/^#\/?/, '')) go();
  else filterBy?.(keep.text);
}

export function overview() {
  const figures = {};
  for (const [key, label, title] of [['items', 'Items'], ['age', 'Oldest'], ['in', 'In'], ['out', 'Out'], ['open', 'Open reads', 'Handed out, not yet confirmed'], ['waiters', 'Waiters', 'Clients that wait for an item'], ['unsynced', 'Unsynced', 'What a power cut could take'], ['journals', 'Journals']]) {
    figures[key] = figure(label, title);
  }
  const history = new History();
  const chart = new Chart({
    title: 'In and out', history, between: true, format: (value) => `${f.rate(value)}/s`, axis: f.axis,
    series: [{ label: 'in', column: 'in', colour: 'accent' }, { label: 'out', column: 'out', colour: 'second' }],
  });
  const table = new Table();
  const health = new HealthBox();
  const cluster = new ClusterBox();
  const input = h('input', {
    class: 'field', type: 'search', id: 'filter', placeholder: innerWidth > 640 ? 'Filter: name, age>5m, items>1k' : 'Filter', 'aria-label': 'Filter queues by name or by number',
    value: keep.text, spellcheck: false, autocomplete: 'off', oninput: () => { keep.text = input.value; table.sort(true); table.paint(); },
  });
  filterBy = (text) => { input.value = keep.text = text; chips[0].click(); };
  const chips = Object.entries(FILTERS).map(([key, [label]]) => h('button', {
    type: 'button', 'aria-pressed': String(keep.filter === key), 'data-filter': key,
    onclick: () => { keep.filter = key; chips.forEach((chip) => chip.setAttribute('aria-pressed', String(chip.dataset.filter === key))); table.sort(true); table.paint(); },
  }, label, h('span', { class: 'n' })));
  const tools = h('div', { class: 'tools', role: 'toolbar', 'aria-label': 'Filter' }, input, h('div', { class: 'filters' }, chips), h('span', { class: 'end' }, table.order));
  const holds = h('p', { class: 'small muted', id: 'holds', hidden: true });
  const band = h('div', { class: 'band dim' }, h('dl', { class: 'figs' }, Object.values(figures).map((each) => each.element)), chart.element);
  const section = h('section', { class: 'dim', 'aria-label': 'Queues' }, tools, table.element, table.none);
  const empty = emptyBox();
  const element = h('div', null, h('h1', { class: 'sr' }, 'Queues'), health.element, cluster.element, band, holds, section, empty, foot());
  const paint = () => table.paint();

  function figuresNow() {
    const { totals, server } = store;
    if (!totals) return;
    const oldest = totals.oldest_at_ms ? now() - totals.oldest_at_ms : 0;
    setFigure(figures.items, f.short(totals.items), shownBytes(totals.bytes));
    setFigure(figures.age, oldest ? f.duration(oldest) : 'none', oldest ? `in ${f.oneLine(totals.oldest_in)}` : '');
    const net = totals.put_rate - totals.get_rate;
    setFigure(figures.in, `${f.rate(totals.put_rate)}/s`, store.health?.ready === false ? 'see above' : '');
    setFigure(figures.out, `${f.rate(totals.get_rate)}/s`, Math.abs(net) <= totals.put_rate * 0.02 ? 'keeps pace' : net > 0 ? `${f.rate(net)}/s behind` : `catching up ${f.rate(-net)}/s`);
    setFigure(figures.open, f.count(totals.open_reads), '');
    setFigure(figures.waiters, f.count(totals.waiters), '');
    setFigure(figures.unsynced, shownBytes(totals.unsynced_bytes), totals.unsynced_bytes ? '' : 'all on the disk');
    setFigure(figures.journals, shownBytes(totals.journal_bytes), store.disk ? `${f.bytes(store.disk.free_bytes)} free` : '', server?.is_full ? 'bad' : '');
    const held = store.disk?.holds || [];
    setText(holds, held.length ? `Holds: ${held.map((each) => (each.state === 'active' ? `${each.name} keeps ${shownBytes(each.bytes)}, moved ${f.duration(now() - each.moved_ms)} ago` : `${each.name} was dropped`)).join('; ')}` : '');
    holds.hidden = !held.length;
  }

  return {
    element, title: 'Queues', nav: 'queues',
    async start() {
      addEventListener('scroll', paint, { passive: true });
      addEventListener('resize', paint);
      this.tick(true);
      scrollTo(0, keep.y);
      await this.again();
    },
    // Points from the time when the page was hidden or cut off are in the server's history alone.
    async again() {
      const found = await get('/api/history').catch(() => null);
      if (found) history.take(found, '10m');
      drawSoon();
    },
    stop() {
      keep.y = scrollY;
      removeEventListener('scroll', paint);
      removeEventListener('resize', paint);
    },
    tick(isForced) {
      const isEmpty = store.isWhole && !store.rows.size;
      empty.hidden = !isEmpty;
      section.hidden = isEmpty;
      health.tick();
      cluster.tick();
      figuresNow();
      const { totals } = store;
      if (totals) history.follow({ items: totals.items, in: totals.put_rate, out: totals.get_rate });
      Object.values(FILTERS).forEach(([, test], at) => {
        let n = 0;
        for (const row of store.rows.values()) n += test(row) ? 1 : 0;
        setText(chips[at].lastChild, f.count(n));
      });
      table.sort(isForced === true || table.list.length === 0);
      table.paint();
      drawSoon();
    },
    key(event) {
      const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -1e9, End: 1e9 }[event.key];
      const row = table.current;
      if (event.key === '/') { input.focus(); input.select(); } else if (step) table.move(step);
      else if (event.key === 'Escape') { keep.text = input.value = ''; chips[0].click(); } else if (event.key === 's') table.sortBy(nextSort());
      else if (!row) return false;
      else if (event.key === 'Enter') go('queues', row.name);
      else if (event.key === 'p') pause(row);
      else if (event.key === 'P') purge(row);
      else if (event.key === 'm') move(row);
      else if (event.key === '.') openPalette(`${row.name} `, row.name);
      else return false;
      return true;
    },
  };
}

function nextSort() {
  const keys = COLUMNS.filter(([, , , value]) => value).map(([key]) => key);
  return keys[(keys.indexOf(keep.sort) + 1) % keys.length];
}

function emptyBox() {
  return h('div', { class: 'empty', hidden: true }, h('h2', null, 'No queues yet'),
    h('p', { class: 'muted' }, 'A queue is made when something is first put into it. Try it from a shell; this page shows it within a second.'),
    h('pre', null, 'staniel put hello world\nstaniel get hello'),
    h('p', null, command('staniel put hello world')));
}
