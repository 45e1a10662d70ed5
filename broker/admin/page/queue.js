// One queue: figures, charts over time, its operations, and tabs.

import { Chart, History, drawSoon } from './charts.js';
import { fill, figure, h, icon, setFigure, setText, toast } from './dom.js';
import * as f from './format.js';
import { move, pause, purge, redrive } from './ask.js';
import { browse } from './items.js';
import { go } from './main.js';
import { HealthBox, foot, fullInMs, isSoon, trendText } from './overview.js';
import { openPalette } from './palette.js';
import { get, isDeadLetters, now, originsOf, queuePath, store } from './store.js';
import { journal, openReads, settings, waiters } from './tabs.js';

const TABS = [['browse', 'Browse', browse], ['open', 'Open reads', openReads], ['waiters', 'Waiters', waiters], ['journal', 'Journal', journal], ['settings', 'Settings', settings]];
const SPANS = [['10m', '10 min'], ['1h', '1 h'], ['1d', '1 day']];
const FIGURES = [
  ['items', 'Items'], ['age', 'Oldest', 'Age of the oldest item that can be handed out'], ['in', 'In'], ['out', 'Out'], ['trend', 'Trend'],
  ['open', 'Open reads', 'Handed out, not yet confirmed'], ['waiters', 'Waiters', 'Clients that wait for an item'], ['unsynced', 'Not yet on disk', 'What a power cut could take'], ['journal', 'Journal'],
];
const interval = (text) => (Number.parseInt(text, 10) < 1000 ? text.replace('ms', ' ms') : f.duration(Number.parseInt(text, 10)));
const ORIGINS_SHOWN = 3;
const some = (names) => names.slice(0, ORIGINS_SHOWN).map(f.oneLine).join(', ') + (names.length > ORIGINS_SHOWN ? ` and ${f.count(names.length - ORIGINS_SHOWN)} more` : '');
const SYNC = { always: 'synced before each reply', os: 'synced when the system likes', none: '' };

export function queuePage(name, tab) {
  const figures = Object.fromEntries(FIGURES.map(([key, label, title]) => [key, figure(label, title)]));
  const history = new History();
  const row = () => store.rows.get(name);
  const age = () => (row()?.oldestAt ? now() - row().oldestAt : 0);
  const charts = [
    new Chart({ title: 'Depth', history, format: f.count, axis: f.axis, limit: () => row()?.max || 0, series: [{ label: 'items', column: 'items', colour: 'accent', area: true, now: () => row()?.items }] }),
    new Chart({ title: 'In and out', history, between: true, format: (value) => `${f.rate(value)}/s`, axis: f.axis, series: [{ label: 'in', column: 'in', colour: 'accent' }, { label: 'out', column: 'out', colour: 'second' }] }),
    new Chart({ title: 'Oldest item', history, ages: true, format: f.duration, series: [{ label: 'age', column: 'age', colour: 'accent', area: true, now: age }] }),
    new Chart({ title: 'Not yet on disk', history, base: 1024, least: 1024, format: f.bytes, series: [{ label: 'unsynced', column: 'unsynced', colour: 'warn-mark', area: true, now: () => row()?.unsynced }] }),
    new Chart({ title: 'Open reads', history, format: f.count, axis: f.axis, series: [{ label: 'open', column: 'open', colour: 'accent', area: true, now: () => row()?.open }] }),
  ];
  const health = new HealthBox(name);
  const pauseButton = h('button', { class: 'btn', type: 'button', id: 'pause', 'data-acts': '', onclick: () => row() && pause(row()) }, 'Pause gets');
  const redriveButton = h('button', { class: 'btn', type: 'button', id: 'redrive', 'data-acts': '', hidden: true, onclick: () => row() && redrive(row()) }, 'Redrive…');
  const tags = h('span', { class: 'tags' });
  const operations = h('div', { class: 'ops' }, redriveButton, pauseButton,
    h('button', { class: 'btn', type: 'button', id: 'move', 'data-acts': '', onclick: () => row() && move(row()) }, 'Move…'),
    h('button', { class: 'btn danger', type: 'button', id: 'purge', 'data-acts': '', onclick: () => row() && purge(row()) }, 'Purge…'),
    h('button', { class: 'btn quiet more', type: 'button', 'aria-label': 'More operations', onclick: () => openPalette(`${name} `, name) }, icon('more')));
  const spans = h('span', { class: 'seg', role: 'group', 'aria-label': 'Time' }, SPANS.map(([span, label]) => h('button', { type: 'button', 'aria-pressed': String(span === '10m'), 'data-span': span, onclick: () => load(span) }, label)));
  const kept = h('span', { class: 'faint small' });
  const panel = h('div', { class: 'panel dim', role: 'tabpanel', id: 'panel', tabIndex: -1 });
  const counts = {};
  const tabs = h('div', { class: 'tabs', role: 'tablist', 'aria-label': `About ${f.oneLine(name)}` }, TABS.map(([key, label], at) => h('button', {
    role: 'tab', type: 'button', id: `tab-${key}`, 'aria-controls': 'panel', 'data-tab': key,
    onclick: () => go('queues', name, key),
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const [next] = TABS[(at + step + TABS.length) % TABS.length];
      go('queues', name, next);
      document.getElementById(`tab-${next}`).focus();
    },
  }, label, counts[key] = h('span', { class: 'n' }))));
  const crumb = h('p', { class: 'crumb' }, h('a', { href: '#/' }, 'Queues'));
  const gone = h('div', { class: 'empty', hidden: true }, h('h2', null, 'There is no such queue'), h('p', { class: 'muted' }, 'It has been deleted, or nothing was put into it yet. This page shows it as soon as there is one.'), h('p', null, h('a', { class: 'btn', href: '#/' }, 'All queues')));
  const whole = h('div', null,
    h('dl', { class: 'strip dim' }, Object.values(figures).map((each) => each.element)),
    h('div', { class: 'range' }, kept, spans), h('section', { class: 'charts dim', 'aria-label': 'History' }, charts.map((chart) => chart.element)), tabs, panel);
  const element = h('div', null, crumb, h('div', { class: 'head' }, h('h1', null, f.oneLine(name)), tags, operations), health.element, whole, gone, foot());
  let part = null;
  let wasGone = false;
  let loads = 0;
  let told = '';

  async function load(span) {
    loads += 1;
    const mine = loads;
    for (const button of spans.children) button.setAttribute('aria-pressed', String(button.dataset.span === span));
    try {
      const view = await get(`${queuePath(name, 'history')}?span=${span}`);
      if (mine !== loads) return;
      history.take(view, span);
      setText(kept, view.is_kept ? '' : 'No history is kept of this queue: too many others are busy.');
      drawSoon();
    } catch (error) {
      if (error.status !== 404) toast(error.message, true);
    }
  }

  function show(key) {
    tab = key;
    for (const button of tabs.children) {
      const isShown = button.dataset.tab === key;
      button.setAttribute('aria-selected', String(isShown));
      button.tabIndex = isShown ? 0 : -1;
      if (isShown) button.scrollIntoView({ block: 'nearest', inline: 'nearest' });
    }
    panel.setAttribute('aria-labelledby', `tab-${key}`);
    part?.stop?.();
    part = TABS.find(([each]) => each === key)[2](name, row);
    fill(panel, part.element);
    part.start?.();
  }

  function figuresNow(now_) {
    setFigure(figures.items, f.short(now_.items), now_.items ? f.bytes(now_.bytes) : '');
    setFigure(figures.age, now_.items && now_.oldestAt ? f.duration(age()) : 'none', '', now_.level && age() > 600_000 ? 'warn' : '');
    setFigure(figures.in, `${f.rate(now_.inSmooth)}/s`);
    setFigure(figures.out, `${f.rate(now_.outSmooth)}/s`, '', now_.reasons.includes('queue_not_read') ? 'warn' : '');
    const left = isSoon(fullInMs(now_)) ? `full in ${f.duration(fullInMs(now_))}` : '';
    setFigure(figures.trend, now_.trend === 'drains' ? `−${f.rate(-now_.net)}/s` : trendText(now_) || 'empty', now_.trend === 'drains' ? trendText(now_) : left, now_.level ? 'warn' : '');
    setFigure(figures.open, f.count(now_.open));
    setFigure(figures.waiters, f.count(now_.waiters));
    setFigure(figures.unsynced, now_.sync === 'none' ? 'no journal' : f.bytes(now_.unsynced), SYNC[now_.sync] ?? `synced within ${interval(now_.sync)}`);
    setFigure(figures.journal, now_.sync === 'none' ? 'none' : f.bytes(now_.journal), now_.sync === 'none' ? 'a restart empties it' : '');
  }

  function stateNow(now_) {
    setText(pauseButton, now_.paused === 'none' ? 'Pause gets' : 'Resume');
    redriveButton.hidden = !isDeadLetters(name);
    const key = [now_.paused, now_.why, now_.deadTo, some(originsOf(name))].join('\n');
    if (key === told) return;
    told = key;
    fill(tags,
      now_.paused !== 'none' ? h('span', { class: 'tag', id: 'paused' }, icon('pause'), now_.paused === 'all' ? 'paused' : `${now_.paused} paused`) : '',
      now_.why ? h('span', { class: 'tag warn' }, icon('warn'), now_.why) : '',
      isDeadLetters(name) ? h('span', { class: 'tag', id: 'origins', title: originsOf(name).slice(0, 100).map(f.oneLine).join(', ') }, `dead letters of ${some(originsOf(name))}`) : '',
      now_.deadTo ? h('a', { class: 'tag', href: `#/queues/${f.inPath(now_.deadTo)}` }, `dead letters go to ${f.oneLine(now_.deadTo)}`) : '');
  }

  return {
    element, title: f.oneLine(name), nav: 'queues', name, show,
    start() {
      show(tab);
      load('10m');
      this.tick();
    },
    stop() { part?.stop?.(); },
    again() { load(history.span); },
    tick() {
      health.tick();
      const now_ = row();
      const isGone = !now_ && store.isWhole && store.state === 'live';
      whole.hidden = operations.hidden = isGone;
      gone.hidden = !isGone;
      if (!now_) {
        wasGone ||= isGone;
        return;
      }
      if (wasGone) { // replies from before, when there was no such queue, are out of date
        wasGone = false;
        show(tab);
        load(history.span);
      }
      figuresNow(now_);
      stateNow(now_);
      setText(counts.open, now_.open ? f.count(now_.open) : '');
      setText(counts.waiters, now_.waiters ? f.count(now_.waiters) : '');
      history.follow({ items: now_.items, in: now_.in, out: now_.out, age: age(), open: now_.open, unsynced: now_.unsynced });
      part?.tick?.();
      drawSoon();
    },
    key(event) {
      const number = Number(event.key);
      const now_ = row();
      if (number >= 1 && number <= TABS.length) go('queues', name, TABS[number - 1][0]);
      else if (part?.key?.(event)) return true;
      else if (event.key === 'Escape') go();
      else if (!now_) return false;
      else if (event.key === 'p') pause(now_);
      else if (event.key === 'P') purge(now_);
      else if (event.key === 'm') move(now_);
      else return false;
      return true;
    },
  };
}
