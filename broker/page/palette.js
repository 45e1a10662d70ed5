// Find a queue, or run an operation of one: a box with a list, driven by keys.

import { h } from './dom.js';
import * as f from './format.js';
import { ask, move, pause, purge, redrive } from './ask.js';
import { go, switchTheme } from './main.js';
import { isDeadLetters, store } from './store.js';

const FOUND_MAX = 9;

const operations = (row) => [
  ['Open', '', () => go('queues', row.name)],
  [row.paused === 'none' ? 'Pause gets' : 'Resume', 'p', () => pause(row)],
  ['Purge…', f.items(row.items), () => purge(row)],
  ['Move…', 'm', () => move(row)],
  ...(isDeadLetters(row.name) ? [['Redrive…', f.items(row.items), () => redrive(row)]] : []),
  ['Open reads', f.count(row.open), () => go('queues', row.name, 'open')],
  ['Journal files', f.bytes(row.journal), () => go('queues', row.name, 'journal')],
  ['Settings', '', () => go('queues', row.name, 'settings')],
];

function found(text, name) {
  const row = store.rows.get(name);
  if (row && text.startsWith(`${name} `)) {
    const verb = text.slice(name.length + 1).trim().toLowerCase();
    return operations(row).filter(([label]) => label.toLowerCase().includes(verb)).map(([label, end, run]) => ({ label: `${f.oneLine(name)}: ${label}`, end, run }));
  }
  const wanted = text.trim().toLowerCase();
  const queues = [...store.rows.values()].filter((each) => each.name.toLowerCase().includes(wanted));
  queues.sort((a, b) => b.level - a.level || a.name.length - b.name.length);
  const words = wanted.split(/\s+/);
  const list = words.length === 2 ? operationsOf(...words) : queues.slice(0, FOUND_MAX).map((each) => ({ label: f.oneLine(each.name), end: f.items(each.items), run: () => go('queues', each.name), row: each }));
  const pages = [['All queues', 'g q', () => go()], ['Jobs', 'g j', () => go('jobs')], ['Light or dark', 't', switchTheme], ['Keys', '?', ask.keys]];
  for (const [label, end, run] of pages) if (label.toLowerCase().includes(wanted)) list.push({ label, end, run });
  return list;
}

/** "purge mails", as on a command line, or "mails purge": no queue has a blank in its name. */
function operationsOf(first, second) {
  const rows = [...store.rows.values()].sort((a, b) => a.name.length - b.name.length);
  const has = (row, label, verb, part) => label.toLowerCase().startsWith(verb) && row.name.toLowerCase().includes(part);
  const list = rows.flatMap((row) => operations(row)
    .filter(([label]) => has(row, label, first, second) || has(row, label, second, first))
    .map(([label, end, run]) => ({ label: `${f.oneLine(row.name)}: ${label}`, end, run })));
  return list.slice(0, FOUND_MAX);
}

export function openPalette(text = '', name = '') {
  if (document.querySelector('dialog[open]')) return;
  const from = document.activeElement;
  let list = [];
  let at = 0;
  const options = h('ul', { role: 'listbox', id: 'found', 'aria-label': 'Found' });
  const input = h('input', { role: 'combobox', 'aria-expanded': 'true', 'aria-controls': 'found', 'aria-label': 'Find a queue, or run an operation', placeholder: 'Queue or page', value: text, spellcheck: false, autocomplete: 'off' });
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
