// The frame: bar, routes, keys, theme, the notice of a lost connection, the login.

import { drawSoon, forgetCharts, forgetColours } from './charts.js';
import { $, command, fill, h, icon, say, setAttribute, setClass, setText } from './dom.js';
import * as f from './format.js';
import { ask, lock, undoLast } from './ask.js';
import { memberPage } from './cluster.js';
import { jobs } from './jobs.js';
import { audit, clients, operations } from './lists.js';
import { fillFoot, overview } from './overview.js';
import { openPalette } from './palette.js';
import { queuePage } from './queue.js';
import { listen, login, now, retry, start, store, wall } from './store.js';

const TABS = ['browse', 'open', 'waiters', 'journal', 'settings'];
const PAGES = [['queues', 'Queues', '#/'], ['jobs', 'Jobs', '#/jobs'], ['clients', 'Clients', '#/clients'], ['operations', 'Operations', '#/operations'], ['audit', 'Audit', '#/audit']];
const VIEWS = { jobs, clients, operations, audit };
const CHORDS = { q: '', j: 'jobs', c: 'clients', o: 'operations', a: 'audit' };
const CHORD_MS = 900;
const MARK = 'M10 6.2C8.6 3.6 5.6 2.4 1.5 2.6 4.2 4.4 6.3 6.8 7.7 9.6L6.4 17.4 8.7 16.6 10 18.2 11.3 16.6 13.6 17.400 12.300 9.600C13.700 6.800 15.800 4.400 18.500 2.600 14.400 2.400 11.400 3.600 10 6.200Z';
const MARK_COLOURS = { ok: '275d97', warn: 'b37400', bad: 'c6392b', off: '8a8f96' };

let view = null;
let chordAt = -1e9;

// Routes: #/, #/queues/NAME, #/queues/NAME/TAB, and the pages of VIEWS

const decoded = (part) => {
  try {
    return decodeURIComponent(part);
  } catch { // bytes that are no UTF-8 stand for themselves
    return part.replace(/(?:%[0-9a-f]{2})+/gi, lenient);
  }
};

// Percent-encoded bytes, of which not all are UTF-8: each character that can be read, and each byte between them.
function lenient(run) {
  let text = '';
  for (let at = 0; at < run.length;) {
    let length = 3 * [4, 3, 2, 1, 0].find((count) => count === 0 || isCharacter(run.slice(at, at + 3 * count), count));
    if (length) text += decodeURIComponent(run.slice(at, at + length));
    else {
      text += String.fromCharCode(0xdc00 + parseInt(run.slice(at + 1, at + 3), 16));
      length = 3;
    }
    at += length;
  }
  return text;
}
function isCharacter(run, count) {
  try {
    return run.length === 3 * count && [...decodeURIComponent(run)].length === 1;
  } catch {
    return false;
  }
}

export function go(page = '', name = '', tab = '') {
  const hash = `#/${page}${name && `/${f.inPath(name)}`}${tab && `/${tab}`}`;
  if (tab && view?.name === name) {
    history.replaceState(null, '', hash);
    route();
  } else location.hash = hash;
}

function route() {
  if (store.state === 'member') {
    showMember();
    return;
  }
  const [page, name, tab] = location.hash.replace(/^#\/?/, '').split('/').map(decoded);
  const wanted = TABS.includes(tab) ? tab : 'browse';
  if (page === 'queues' && name && view?.name === name) {
    view.show(wanted);
    lock();
    return;
  }
  view?.stop?.();
  forgetCharts();
  view = page === 'queues' && name ? queuePage(name, wanted) : (Object.hasOwn(VIEWS, page) ? VIEWS[page] : overview)();
  fill($('main'), view.element);
  for (const link of document.querySelectorAll('nav a')) {
    if (link.dataset.page === view.nav) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  scrollTo(0, 0);
  view.start?.();
  bar();
  lock();
}

// A member that does not lead has one page, whatever the address says.
function showMember() {
  if (view?.isOfMember) return;
  view?.stop?.();
  forgetCharts();
  view = memberPage();
  fill($('main'), view.element);
  view.start();
  bar();
}

// The bar

const liveBox = h('span', { class: 'live wait', id: 'live' }, h('i'), h('span', null, 'Connecting'));
const host = h('span', { class: 'host' });
const links = PAGES.map(([page, label, href]) => h('a', { href, 'data-page': page }, label, h('span', { class: 'n' })));
const themeButton = h('button', { class: 'btn quiet', type: 'button', id: 'theme', 'aria-label': 'Light or dark', title: 'Light or dark (t)', onclick: switchTheme }, icon('sun'));

function buildBar() {
  $('bar').querySelector('.brand').append(host);
  $('bar').append(h('nav', { 'aria-label': 'Pages' }, links), h('div', { class: 'right' },
    h('button', { class: 'btn find', type: 'button', id: 'find', 'aria-label': 'Find or run', onclick: () => openPalette() }, icon('find'), h('span', null, 'Find or run'), h('kbd', null, 'Ctrl K')), liveBox, themeButton));
  $('skip').addEventListener('click', (event) => {
    event.preventDefault();
    $('main').focus();
  });
}

function bar() {
  const isMember = store.state === 'member';
  const isLive = store.state === 'live' || isMember;
  document.body.classList.toggle('member', isMember);
  setText(host, location.hostname);
  setText(links[0].lastChild, store.rows.size ? f.count(store.rows.size) : '');
  setClass(liveBox, `live${isLive ? '' : store.state === 'lost' ? ' off' : ' wait'}`);
  setText(liveBox.lastChild, isLive ? `Live, ${f.clock(isMember ? Date.now() : now())}` : store.state === 'lost' ? 'Disconnected' : store.state === 'login' ? 'Locked' : 'Connecting');
  const isWell = isMember && store.cluster.role === 'following' && !store.cluster.etcd;
  const worst = !isLive ? 'off' : isMember ? (isWell ? 'ok' : 'warn') : store.health && !store.health.ready ? 'bad' : store.health?.reasons.length ? 'warn' : 'ok';
  const sign = { off: isLive ? '' : '✕ ', bad: '■ ', warn: '▲ ', ok: '' }[worst];
  document.title = `${sign}${store.state === 'login' ? 'Login' : view?.title || 'Queues'} · Staniel`;
  const mark = `data:image/svg+xml,<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 20 20"><path fill="%23${MARK_COLOURS[worst]}" d="${MARK}"/></svg>`;
  setAttribute(document.querySelector('link[rel=icon]'), 'href', mark);
}

// Light and dark

const systemIsDark = matchMedia('(prefers-color-scheme: dark)');
const isDark = () => (document.documentElement.dataset.theme ? document.documentElement.dataset.theme === 'dark' : systemIsDark.matches);

function showTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  fill(themeButton, icon(isDark() ? 'sun' : 'moon'));
  themeButton.setAttribute('aria-label', isDark() ? 'Light colours' : 'Dark colours');
  forgetColours();
}
export function switchTheme() {
  const theme = isDark() ? 'light' : 'dark';
  try {
    localStorage.setItem('staniel-theme', theme);
  } catch { /* it holds for this page alone */ }
  showTheme(theme);
}
function firstTheme() {
  try {
    showTheme(localStorage.getItem('staniel-theme') || '');
  } catch {
    showTheme('');
  }
  systemIsDark.addEventListener('change', () => showTheme(''));
}

// The connection

let said = '';
function connection() {
  const isLost = store.state === 'lost';
  const gone = $('gone');
  gone.hidden = !isLost;
  lock();
  if (isLost && gone.childElementCount < 3) {
    fill(gone, h('b', { class: 'bad' }, 'Disconnected'), h('span', null), h('button', { class: 'btn sm', type: 'button', onclick: retry }, 'Try now'), command('staniel health'));
  }
  if (isLost) setText(gone.children[1], `from the server since ${f.clock(store.lostAt)}. What you see is ${f.duration(Math.max(0, wall() - store.lostAt))} old; nothing can be changed from here. It is tried again every second.`);
  other();
  if (store.state === said) return;
  if (said === 'lost' && store.state === 'live') {
    say('Connected again.');
    view?.stop?.();
    view = null;
    route(); // the page's own requests, unlike the stream's, may have other replies by now
  }
  said = store.state;
  document.querySelectorAll('.foot').forEach(fillFoot);
  if (store.state === 'member') showMember();
  else if (store.state === 'login') loginForm();
  else if (store.state === 'live' && (!view || view.isOfMember || $('login'))) {
    view = null;
    route();
  }
}

// The server is another program than the one that sent this page: after an upgrade the page is the old one.
function other() {
  const box = $('other');
  if (box.hidden !== store.isOther) return;
  box.hidden = !store.isOther;
  fill(box, store.isOther ? [h('b', null, 'The server has changed'), h('span', null, `It is Staniel ${store.server.version}, ${store.server.build}, now; this page is of another one and may not show all that it says.`), h('button', { class: 'btn sm', type: 'button', onclick: () => location.reload() }, 'Load the new page')] : []);
}

function loginForm() {
  view?.stop?.();
  view = null;
  forgetCharts();
  const field = h('input', { class: 'field', type: 'password', id: 'token', autocomplete: 'current-password', required: true });
  const why = h('p', { class: 'bad', role: 'alert', id: 'why' });
  const form = h('form', { class: 'login', id: 'login' }, h('h1', null, 'Log in'),
    h('p', { class: 'muted' }, 'This server wants its token: the first line of the file that [admin] token_file names.'),
    h('label', { for: 'token' }, 'Token'), field, why, h('button', { class: 'btn main', type: 'submit' }, 'Log in'));
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    try {
      await login(field.value);
    } catch (error) {
      setText(why, error.status === 401 ? 'This is not the token.' : error.message);
      field.select();
    }
  });
  fill($('main'), form);
  field.focus();
}

// Keys

const inField = (target) => target.matches('input,select,textarea');

function onKey(event) {
  if ((event.metaKey || event.ctrlKey) && event.key === 'k' && store.state !== 'login') {
    event.preventDefault();
    openPalette();
    return;
  }
  if (event.metaKey || event.ctrlKey || event.altKey || document.querySelector('dialog[open]') || !view) return;
  const { target } = event;
  if (inField(target)) {
    if (event.key === 'Escape') {
      if (target.value && target.type === 'search') {
        target.value = '';
        target.dispatchEvent(new Event('input'));
        target.dispatchEvent(new Event('change'));
      } else target.blur();
      event.preventDefault();
    } else if (target.id === 'filter' && (event.key === 'Enter' || event.key === 'ArrowDown')) {
      event.preventDefault();
      view.key({ key: 'Home' });
    }
    return;
  }
  if (target.matches('[role=tab]') && event.key.startsWith('Arrow')) return;
  if (target.matches('button,a,summary') && (event.key === 'Enter' || event.key === ' ')) return;
  if (performance.now() - chordAt < CHORD_MS && Object.hasOwn(CHORDS, event.key)) {
    chordAt = -1e9;
    go(CHORDS[event.key]);
  } else if (event.key === 'g') chordAt = performance.now();
  else if (event.key === '?') ask.keys();
  else if (event.key === 'u') undoLast();
  else if (event.key === 't') switchTheme();
  else if (!view.key?.(event)) return;
  event.preventDefault();
}

let paints = 0;
function changed(what) {
  if (what === 'state') connection();
  if (store.state === 'lost' || what === 'again') connection();
  if (what === 'again') view?.again?.();
  cancelAnimationFrame(paints);
  paints = requestAnimationFrame(() => {
    bar();
    view?.tick?.();
  });
}

buildBar();
firstTheme();
listen(changed);
addEventListener('hashchange', () => store.state !== 'login' && route());
addEventListener('keydown', onKey);
addEventListener('resize', drawSoon);
route();
start();
