// Browsing: a dated view of the items of a queue, which takes nothing; text, JSON or hex of each.

import { deleteItem, moveItem, retryItem } from './ask.js';
import { command, fill, h, icon, setText } from './dom.js';
import * as f from './format.js';
import { get, now, queuePath } from './store.js';

const PAGE_ITEMS = 25;
const PREVIEW_BYTES = 4096;
const WHOLE_BYTES = 1 << 20;
const SEARCH_ITEMS = 1000;
const HEX_BYTES = 4096;
const MODES = [['text', 'Text'], ['json', 'JSON'], ['hex', 'Hex']];

const decoder = new TextDecoder('utf-8');
const encoder = new TextEncoder();

function bytesOf(item) {
  if (item.encoding !== 'base64') return encoder.encode(item.data);
  return Uint8Array.from(atob(item.data), (c) => c.charCodeAt(0));
}
const textOf = (item) => (item.encoding === 'base64' ? decoder.decode(bytesOf(item)) : item.data);

function bestMode(item) {
  if (item.encoding === 'base64') return 'hex';
  if (/^\s*[[{]/.test(item.data) && !item.is_cut) {
    try {
      JSON.parse(item.data);
      return 'json';
    } catch {
      return 'text';
    }
  }
  return 'text';
}

function hexLines(bytes) {
  const two = (byte) => byte.toString(16).padStart(2, '0');
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_BYTES); at += 16) {
    const row = [...bytes.slice(at, at + 16)];
    const shown = `${row.slice(0, 8).map(two).join(' ')}  ${row.slice(8).map(two).join(' ')}`.padEnd(49);
    const letters = row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : '.')).join('');
    lines.push(h('span', { class: 'o' }, `${at.toString(16).padStart(6, '0')}  `), shown, h('span', { class: 'o' }, ` ${letters}\n`));
  }
  if (bytes.length > HEX_BYTES) lines.push(h('span', { class: 'o' }, `and ${f.count(bytes.length - HEX_BYTES)} bytes more`));
  return lines;
}

// Only the spacing is changed: numbers too long for JavaScript, and names given twice, stay as they are.
function indented(text) {
  const parts = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) || [];
  const found = [];
  let depth = 0;
  const newline = () => `\n${'  '.repeat(Math.min(depth, 40))}`;
  parts.forEach((part, at) => {
    if (part === '{' || part === '[') {
      depth += 1;
      const isEmpty = parts[at + 1] === '}' || parts[at + 1] === ']';
      found.push(part, isEmpty ? '' : newline());
    } else if (part === '}' || part === ']') {
      depth -= 1;
      found.push(/[{[]/.test(parts[at - 1]) ? '' : newline(), part);
    } else if (part === ',') found.push(part, newline());
    else if (part === ':') found.push(': ');
    else found.push(part[0] === '"' && parts[at + 1] === ':' ? h('span', { class: 'k' }, f.visible(part)) : f.visible(part));
  });
  return found;
}

export function browse(name, row) {
  let offset = 0;
  let at = -1;
  let mode = '';
  let page = null;
  let wanted = '';
  let asked = 0;
  const body = h('tbody');
  const pre = h('pre', { tabIndex: 0, 'aria-label': 'Payload' });
  const bar = h('header');
  const facts = h('dl', { class: 'facts' });
  const dated = h('span', { id: 'dated' });
  const note = h('p', { class: 'note', hidden: true });
  const from = h('input', { class: 'field short', type: 'number', min: 0, value: 0, id: 'from', onchange: () => load(Math.max(0, Math.floor(Number(from.value) || 0))) });
  const seek = h('input', { class: 'field', type: 'search', id: 'seek', placeholder: 'Find in payloads', 'aria-label': `Find in the payloads of the next ${SEARCH_ITEMS} items`, onchange: () => { wanted = seek.value; load(offset); } });
  const modes = h('span', { class: 'seg', role: 'group', 'aria-label': 'Show as' }, MODES.map(([key, label]) => h('button', { type: 'button', 'data-mode': key, onclick: () => { mode = key; look(); } }, label)));
  const table = h('table', { class: 'grid list items', id: 'items', role: 'grid', tabIndex: 0, 'aria-label': 'Items' }, h('thead', null, h('tr', null, [['Pos', 'num w1'], ['Put', 'num w3'], ['Size', 'num w2'], ['Tries', 'num w1'], ['Payload', '']].map(([label, className]) => h('th', { class: className, scope: 'col' }, label)))), body);

  async function load(to) {
    asked += 1;
    const mine = asked;
    offset = to;
    from.value = offset;
    const limit = wanted ? SEARCH_ITEMS : PAGE_ITEMS;
    try {
      const found = await get(`${queuePath(name, 'items')}?offset=${offset}&limit=${limit}&bytes=${wanted ? WHOLE_BYTES : PREVIEW_BYTES}`);
      if (mine !== asked) return;
      page = found;
    } catch (error) {
      if (mine === asked) tell(error.message, error.status === 503);
      return;
    }
    const searched = page.items.length; // a reply ends after a megabyte, however many were requested
    const lower = wanted.toLowerCase();
    if (lower) page.items = page.items.filter((item) => textOf(item).toLowerCase().includes(lower));
    at = page.items[0]?.offset ?? -1;
    mode = '';
    if (!page.items_total) tell('The queue is empty: nothing to browse.');
    else if (!page.items.length) tell(wanted ? `Not found in the ${f.items(searched)} from position ${f.count(offset)}.` : `There are ${f.items(page.items_total)}; none from position ${f.count(offset)}.`);
    else note.hidden = true;
    draw();
  }

  function tell(text, isBad) {
    note.hidden = false;
    fill(note, isBad ? icon('warn', 'mk') : '', ` ${f.oneLine(text)} `, isBad ? command('staniel health') : '');
  }

  function draw() {
    fill(body, page.items.map((item) => {
      const text = item.encoding === 'base64' ? [...bytesOf(item).slice(0, 24)].map((byte) => byte.toString(16).padStart(2, '0')).join(' ') : f.oneLine(item.data.slice(0, 160));
      const element = h('tr', { class: 'r', id: `item-${item.offset}`, role: 'row', onclick: () => choose(item.offset) },
        h('td', { class: 'num faint' }, f.count(item.offset)), h('td', { class: 'num' }, f.moment(item.added_at_ms, now())), h('td', { class: 'num' }, f.bytes(item.data_bytes)),
        h('td', { class: item.deliveries ? 'num' : 'num z' }, f.count(item.deliveries)), h('td', { class: 'mono' }, text));
      return element;
    }));
    choose(at);
  }

  function choose(to) {
    if (to !== at) mode = '';
    at = to;
    for (const element of body.children) {
      const isChosen = element.id === `item-${at}`;
      element.classList.toggle('at', isChosen);
      element.setAttribute('aria-selected', String(isChosen));
    }
    if (at >= 0) table.setAttribute('aria-activedescendant', `item-${at}`);
    look();
  }

  function look() {
    const item = page?.items.find((each) => each.offset === at);
    pay.hidden = !item;
    if (!item) return;
    const shown = mode || bestMode(item);
    for (const button of modes.children) button.setAttribute('aria-pressed', String(button.dataset.mode === shown));
    pre.className = shown;
    if (shown === 'hex') fill(pre, hexLines(bytesOf(item)));
    else if (shown === 'json') fill(pre, bestMode(item) === 'json' ? indented(item.data) : h('span', { class: 'o' }, item.is_cut ? 'Not all of it is shown, so it cannot be read as JSON.' : 'This is no JSON.'));
    else fill(pre, f.visible(textOf(item)));
    const rest = item.is_cut ? h('button', { class: 'btn sm', type: 'button', onclick: () => whole(item) }, `Show all of it, up to ${f.bytes(WHOLE_BYTES)}`) : '';
    const { deadTo, max } = row() || {};
    const act = (label, operation) => h('button', { class: 'btn sm', type: 'button', 'data-acts': '', onclick: () => operation({ name }, item, () => load(offset)) }, label);
    const acts = item.id ? [item.past ? act('Retry…', retryItem) : '', act('Move…', moveItem), act('Delete…', deleteItem)] : [];
    fill(bar, h('h2', null, `Position ${f.count(item.offset)}`), h('span', { class: 'muted' }, f.bytes(item.data_bytes)), h('span', { class: 'acts' }, rest, acts), modes);
    const told = [
      ['Put', `${f.moment(item.added_at_ms, now())}, ${f.duration(item.age_ms)} before this look`],
      ['Handed out', item.deliveries ? `${f.many(item.deliveries, 'time')} before${deadTo ? `; at last it goes to ${f.oneLine(deadTo)}` : ''}` : 'not yet'],
      ['Expires', item.expires_at_ms ? f.moment(item.expires_at_ms, now()) : 'not by itself'],
      ['Flags', String(item.flags)],
      ...(max > 0 ? [['Limit', f.items(max)]] : []),
      ...(item.past ? pastOf(item.past) : []),
    ];
    fill(facts, told.map(([label, text]) => [h('dt', null, label), h('dd', null, text)]));
  }

  function pastOf(past) {
    return [
      [past.reason === 'dead' ? 'Died in' : 'Expired in', `${f.oneLine(past.origin)}, ${f.moment(past.left_at_ms, now())}${past.times > 1 ? `; it has left a queue like this ${f.many(past.times, 'time')}` : ''}`],
      ['Delivered there', `${past.deliveries ? f.many(past.deliveries, 'time') : 'never'}${past.client ? `, last to ${f.oneLine(past.client)}` : ''}`],
      ['First put', f.moment(past.put_at_ms, now())],
    ];
  }

  async function whole(item) {
    const found = await get(`${queuePath(name, 'items')}?offset=${item.offset}&limit=1&bytes=${WHOLE_BYTES}`).catch(() => null);
    const [same] = found?.items || [];
    if (same && same.added_at_ms === item.added_at_ms && same.data_bytes === item.data_bytes) {
      Object.assign(item, { data: same.data, encoding: same.encoding, is_cut: same.is_cut });
      look();
    } else tell('Another item stands there now: look again.');
  }

  const turn = (by) => load(Math.max(0, Math.min(Math.max(0, (page?.items_total || 1) - 1), offset + by * PAGE_ITEMS)));
  const tools = h('div', { class: 'tools flat' }, h('label', { class: 'muted small', for: 'from' }, 'From'), from,
    h('button', { class: 'btn quiet', type: 'button', onclick: () => turn(-1) }, 'Earlier'), h('button', { class: 'btn quiet', type: 'button', onclick: () => turn(1) }, 'Later'), seek,
    h('span', { class: 'end' }, dated, h('button', { class: 'btn quiet sm', type: 'button', onclick: () => load(offset) }, 'Look again ', h('kbd', null, 'r'))));
  const pay = h('div', { class: 'pay', hidden: true }, bar, pre, facts);
  const move = (step) => {
    const index = page?.items.findIndex((item) => item.offset === at);
    const next = page?.items[index + step];
    if (!next) return;
    choose(next.offset);
    document.getElementById(`item-${next.offset}`)?.scrollIntoView({ block: 'nearest' });
  };
  return {
    element: h('div', { class: 'split' }, h('div', null, tools, note, h('div', { class: 'wide' }, table)), pay),
    start: () => load(0),
    tick() {
      if (!page) return;
      const ago = now() - page.at_ms;
      setText(dated, ago < 2000 ? 'Looking takes nothing.' : `As it was ${f.duration(ago)} ago`);
    },
    key(event) {
      if (event.key === 'r') load(offset);
      else if (event.key === '/') { seek.focus(); seek.select(); } else if (event.key === 'v') {
        const item = page?.items.find((each) => each.offset === at);
        const keys = MODES.map(([key]) => key);
        if (item) mode = keys[(keys.indexOf(mode || bestMode(item)) + 1) % keys.length];
        look();
      } else {
        const step = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
        if (!step || (event.key.startsWith('Arrow') && document.activeElement !== table)) return false;
        move(step);
      }
      return true;
    },
  };
}
