// Find a queue, or run an operation of one: a box with a list, driven by keys.

import { h } from './dom.js';
import * as f from './format.js';
import { abortAll, ask, move, pause, pausePuts, purge, redrive, reload, remove, setStatus, stop, undoLast } from './ask.js';
import { go, switchTheme } from './main.js';
import { isDeadLetters, store } from './store.js';

const FOUND_MAX = 12;
const ROWS_MAX = 2000; // rows whose operations are all searched

// [label, what stands at its end, what it runs, other words by which it is found: the command line's, other servers']
const operations = (row) => [
  ['Open', '', () => go('queues', row.name), 'items peek find'],
  [row.paused === 'none' ? 'Pause gets' : 'Resume', 'p', () => pause(row)],
  ...(row.paused === 'puts' || row.paused === 'all' ? [] : [['Pause puts', '', () => pausePuts(row)]]),
  ['Purge…', f.items(row.items), () => purge(row), 'flush empty'],
  ['Move…', 'm', () => move(row), 'requeue'],
  ...(isDeadLetters(row.name) ? [['Redrive…', f.items(row.items), () => redrive(row), 'retry requeue']] : []),
  ...(row.open ? [['Give back all…', f.many(row.open, 'read'), () => abortAll(row), 'abort']] : []),
  ['Delete…', '', () => remove(row)],
  ['Open reads', f.count(row.open), () => go('queues', row.name, 'open')],
  ['Waiters', f.count(row.waiters), () => go('queues', row.name, 'waiters')],
  ['Journal files', f.bytes(row.journal), () => go('queues', row.name, 'journal')],
  ['Settings', '', () => go('queues', row.name, 'settings')],
];

const PAGES = [
  ['All queues', 'g q', () => go()], ['Jobs', 'g j', () => go('jobs')], ['Clients', 'g c', () => go('clients')],
  ['Operations', 'g o', () => go('operations'), 'cancel'], ['Audit', 'g a', () => go('audit')],
  ['Undo the last operation', 'u', undoLast], ['Reload the configuration', '', reload],
  ...['up', 'writeavoid', 'readonly', 'quiescent'].map((status) => [`Status ${status}…`, '', () => setStatus(status)]),
  ['Stop the server…', '', stop, 'shutdown'], ['Light or dark', 't', switchTheme, 'theme'], ['Keys', '?', ask.keys, 'help'],
];

const wordsOf = ([label, , , others = '']) => `${label} ${others}`.toLowerCase();
const option = (row, [label, end, run]) => ({ label: `${f.oneLine(row.name)}: ${label}`, end, run });

// Each word is a part of a queue's name, of an operation or of a page: "purge mails", "mails purge", "reload".
function found(text, name) {
  const row = store.rows.get(name);
  if (row && text.startsWith(`${name} `)) {
    const verb = text.slice(name.length + 1).trim().toLowerCase();
    return operations(row).filter((each) => wordsOf(each).includes(verb)).map((each) => option(row, each));
  }
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (label, parts) => parts.every((part) => label.toLowerCase().includes(part));
  const here = location.hash.startsWith('#/queues/') ? document.querySelector('h1')?.textContent : '';
  const rows = [...store.rows.values()].sort((a, b) => (f.oneLine(b.name) === here) - (f.oneLine(a.name) === here) || b.level - a.level || a.name.length - b.name.length);
  const list = rows.filter((each) => has(each.name, words)).slice(0, FOUND_MAX)
    .map((each) => ({ label: f.oneLine(each.name), end: f.items(each.items), run: () => go('queues', each.name), row: each }));
  const pages = PAGES.filter((each) => has(wordsOf(each), words)).map(([label, end, run]) => ({ label, end, run }));
  const more = words.length ? rows.slice(0, ROWS_MAX).flatMap((each) => ofRow(each, words, has)).slice(0, FOUND_MAX) : [];
  return [...list, ...pages, ...more];
}

// The operations of a queue for the words that are no part of its name.
function ofRow(row, words, has) {
  const rest = words.filter((word) => !row.name.toLowerCase().includes(word));
  return rest.length ? operations(row).filter((each) => has(wordsOf(each), rest)).map((each) => option(row, each)) : [];
}

export function openPalette(text = '', name = '') {
  if (document.querySelector('dialog[open]')) return;
  const from = document.activeElement;
  let list = [];
  let at = 0;
  const options = h('ul', { role: 'listbox', id: 'found', 'aria-label': 'Found' });
  const input = h('input', { role: 'combobox', 'aria-expanded': 'true', 'aria-controls': 'found', 'aria-label': 'Find a queue, or run an operation', placeholder: 'Queue, page or operation', value: text, spellcheck: false, autocomplete: 'off' });
  const hint = h('p', { class: 'small faint hint' }, h('kbd', null, '↵'), ' open or run ', h('kbd', null, 'Tab'), ' operations of the queue ', h('kbd', null, 'Esc'), ' close');
  const dialog = h('dialog', { class: 'pal', 'aria-label': 'Find or run' }, input, options, hint);
  const run = (chosen) => { dialog.close(); chosen?.run(); };
  function draw() {
    options.replaceChildren(...list.map((each, index) => h('li', { role: 'option', id: `found-${index}`, 'aria-selected': String(index === at), onclick: () => run(each) }, h('span', null, each.label), h('span', { class: 'end' }, each.end))));
    if (!list.length) options.append(h('li', { class: 'faint' }, 'Nothing by that name.'));
    input.setAttribute('aria-activedescendant', `found-${at}`);
    options.children[at]?.scrollIntoView({ block: 'nearest' });
  }
  function find() {
    list = found(input.value, name);
    at = 0;
    draw();
  }
  input.addEventListener('input', find);
  input.addEventListener('keydown', (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && list.length) at = (at + step + list.length) % list.length;
    else if (event.key === 'Enter') run(list[at]);
    else if (event.key === 'Tab' && list[at]?.row) {
      name = list[at].row.name;
      input.value = `${name} `;
      find();
    } else return;
    event.preventDefault();
    draw();
  });
  dialog.addEventListener('click', (event) => event.target === dialog && dialog.close());
  dialog.addEventListener('close', () => {
    dialog.remove();
    if (from?.isConnected && !document.querySelector('dialog[open]')) from.focus({ preventScroll: true });
  });
  document.body.append(dialog);
  dialog.showModal();
  find();
  input.focus();
}
