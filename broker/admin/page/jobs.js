// Jobs of workq's, by name.

import { fill, figure, h, head, setFigure } from './dom.js';
import * as f from './format.js';
import { HealthBox, foot } from './overview.js';
import { get } from './store.js';

const EVERY_MS = 2000;
const COLUMNS = [['ready', 'Ready'], ['scheduled', 'Scheduled'], ['leased', 'Leased'], ['finished', 'Finished'], ['waiters', 'Workers waiting']];

export function jobs() {
  const health = new HealthBox();
  const figures = Object.fromEntries(COLUMNS.map(([key, label]) => [key, figure(label)]));
  const body = h('tbody');
  const note = h('p', { class: 'note' }, 'Reading…');
  const table = h('table', { class: 'list', hidden: true }, head([['Name', ''], ...COLUMNS.map(([, label]) => [label, 'num'])]), body);
  const element = h('div', null, health.element, h('div', { class: 'head' }, h('h1', null, 'Jobs'), h('span', { class: 'muted' }, 'of workq clients')),
    h('dl', { class: 'strip dim' }, Object.values(figures).map((each) => each.element)), h('div', { class: 'wide dim' }, table, note), foot());
  let askedAt = -1e9;
  let isAsking = false;
  const cell = (n) => h('td', { class: n ? 'num' : 'num z' }, f.count(n));
  return {
    element, title: 'Jobs', nav: 'jobs',
    start() { this.tick(); },
    async tick() {
      health.tick();
      if (isAsking || performance.now() - askedAt < EVERY_MS) return;
      isAsking = true;
      askedAt = performance.now();
      const found = await get('/api/jobs').catch(() => null);
      isAsking = false;
      if (!found) return;
      for (const [key] of COLUMNS) setFigure(figures[key], f.count(found.reduce((sum, each) => sum + each[key], 0)));
      table.hidden = !found.length;
      note.hidden = found.length > 0;
      fill(note, 'No jobs. A server with [workq] in its configuration serves them; names appear here when they are first used.');
      fill(body, found.map((each) => h('tr', { class: 'r' }, h('td', null, h('b', null, f.oneLine(each.name))), COLUMNS.map(([key]) => cell(each[key])))));
    },
  };
}
