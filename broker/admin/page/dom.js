// Building blocks of pages. Text is only ever set as text: nothing from the server becomes markup.

const SVG = 'http://www.w3.org/2000/svg';
const ICONS = {
  warn: 'M8 2.2 14.6 13.6H1.400ZM8 6.5v3.2M8 11.600v.2',
  bad: 'M5.2 1.8h5.6l3.4 3.4v5.6l-3.4 3.4H5.200L1.8 10.8V5.200ZM8 5v3.6M8 10.900v.2',
  pause: 'M5.5 3v10M10.5 3v10',
  play: 'M5 3.2v9.600l7.5-4.800Z',
  ok: 'm3 8.5 3.4 3.4L13 5',
  copy: 'M5.5 5.5V3h7.5v7.5h-2.500M3 5.500h7.500V13H3Z',
  right: 'm6 3.5 4.5 4.5L6 12.5',
  down: 'm3.5 6 4.5 4.5L12.500 6',
  more: 'M3.5 8h.01M8 8h.01M12.5 8h.01',
  sun: 'M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.600ZM8 1.500v1M8 13.500v1M1.500 8h1M13.500 8h1M3.400 3.400l.7.7M11.900 11.900l.7.7M3.400 12.600l.7-.7M11.900 4.100l.7-.7',
  moon: 'M13 9.800A5.500 5.500 0 1 1 6.200 3 4.400 4.400 0 0 0 13 9.800Z',
  out: 'M3 8h9M8.500 4 12.500 8l-4 4',
  stay: 'M3 5h10M3 8h10M3 11h6',
  final: 'M4 4l8 8M12 4l-8 8',
  back: 'M6.500 3.500 3 7l3.500 3.500M3 7h6.500a3.500 3.500 0 0 1 0 7H7',
  find: 'M7 2.800a4.200 4.200 0 1 0 0 8.400 4.200 4.200 0 0 0 0-8.400ZM10.200 10.200 13.500 13.500',
};

export const $ = (id) => document.getElementById(id);

// An element; `on…` are listeners, the others are set as properties if the element has such, else as attributes.
export function h(tag, given, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(given || {})) {
    if (value === false || value == null) continue;
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (key === 'class') element.className = value;
    else if (key in element && key !== 'list' && !key.startsWith('aria')) element[key] = value;
    else element.setAttribute(key, value === true ? '' : value);
  }
  return add(element, children);
}

export function add(element, children) {
  for (const child of children.flat(9)) {
    if (child != null && child !== false && child !== '') element.append(child.nodeType ? child : String(child));
  }
  return element;
}

export const fill = (element, ...children) => {
  element.replaceChildren();
  return add(element, children);
};

// `fill` for content that changes by itself. Nothing is replaced while a pointer is down on it, because its click
// would be lost: returns false then. The focus keeps its place among the elements that can have it.
const FOCUSABLE = 'a[href],button,input,select,summary,[tabindex]';
export function refill(element, ...children) {
  if (element.matches(':active')) return false;
  const at = [...element.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
  fill(element, ...children);
  if (at >= 0) element.querySelectorAll(FOCUSABLE)[at]?.focus({ preventScroll: true });
  return true;
}

export function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export function icon(name, className = '') {
  return svg('svg', { viewBox: '0 0 16 16', class: `i ${className}`, 'aria-hidden': 'true' }, svg('path', { d: ICONS[name] }));
}

// Writes only differences: most ticks change little.
export const setText = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};
export const setClass = (element, name) => {
  if (element.className !== name) element.className = name;
};
export const setAttribute = (element, name, value) => {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
};

// A shell's command, with a button that copies it.
export function command(text) {
  const button = h('button', { type: 'button', 'aria-label': `Copy: ${text}`, title: 'Copy' }, icon('copy'));
  button.addEventListener('click', () => {
    navigator.clipboard?.writeText(text);
    say('Copied.');
    fill(button, icon('ok', 'good'));
    setTimeout(() => fill(button, icon('copy')), 1400);
  });
  return h('span', { class: 'cmd' }, h('code', null, text), button);
}

// A figure with its label: `dd` gets its value by `setFigure`.
export function figure(label, title) {
  const dd = h('dd');
  return { element: h('div', { class: 'fig', title }, h('dt', null, label), dd), dd, shown: null };
}
export function setFigure(of, value, small = '', level = '') {
  const key = `${value}\n${small}\n${level}`;
  if (of.shown === key) return;
  of.shown = key;
  of.dd.className = level;
  fill(of.dd, value, h('small', null, small || '\u00a0'));
}

export function head(columns) {
  return h('thead', null, h('tr', null, columns.map(([label, className, title]) => h('th', { class: className, scope: 'col', title }, label))));
}

let saying;
export function say(text) {
  const region = $('say');
  region.textContent = '';
  clearTimeout(saying);
  saying = setTimeout(() => { region.textContent = text; }, 60);
}

const TOAST_MS = 6000;
const TOAST_WITH_BUTTON_MS = 14000;
export function toast(text, isBad = false, button = null) {
  const box = h('div', { class: isBad ? 'toast bad' : 'toast' }, icon(isBad ? 'warn' : 'ok'), h('span', null, text), button || '');
  const region = $('toasts');
  region.append(box);
  while (region.children.length > 3) region.firstChild.remove();
  const shownMs = button ? TOAST_WITH_BUTTON_MS : isBad ? 2 * TOAST_MS : TOAST_MS;
  const leave = () => (box.matches(':hover, :focus-within') ? setTimeout(leave, TOAST_MS) : box.remove());
  setTimeout(leave, shownMs);
}
