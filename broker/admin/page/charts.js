// Charts over time on canvases, with one cursor for all of them. Values are null where the server did not look.

import { clock } from './format.js';
import { h, say, setAttribute, setText } from './dom.js';
import { now, store, wall } from './store.js';

const TOP = 8;
const BOTTOM = 17;
const TICKS_MS = { '10m': 120_000, '1h': 900_000, '1d': 21_600_000 };
const SPAN_MS = { '10m': 600_000, '1h': 3_600_000, '1d': 86_400_000 };
const SPAN_NAME = { '10m': '10 minutes', '1h': 'hour', '1d': 'day' };
const AGES_MS = [10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800].map((s) => s * 1000);

const charts = new Set();
let cursor = null; // as a part of the span, from 0 to 1
let colours = new Map();
let frame = 0;

const sizes = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.chart?.resize(entry.contentRect)));

function colour(name) {
  if (!colours.has(name)) {
    const probe = document.createElement('i');
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    colours.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return colours.get(name);
}
export function forgetColours() {
  colours = new Map();
  drawSoon();
}
export function drawSoon() {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => charts.forEach((chart) => chart.draw()));
}
export function forgetCharts() {
  charts.forEach((chart) => sizes.unobserve(chart.canvas));
  charts.clear();
  cursor = null;
}

// A history of the server's, and the points of the stream of events since.
export class History {
  constructor() {
    this.span = '10m';
    this.endMs = 0;
    this.stepMs = 5000;
    this.columns = {};
    this.isKept = true;
  }

  take(view, span) {
    this.span = span;
    this.endMs = view.end_at_ms;
    this.stepMs = view.step_ms;
    this.isKept = view.is_kept;
    this.columns = {
      items: view.items, in: view.put_rate, out: view.get_rate, age: view.age_ms, open: view.open_reads, unsynced: view.unsynced_bytes,
    };
  }

  // A point of this moment, once a step. Steps without looks, such as those of a hidden page, are unknown.
  follow(point) {
    if (!this.endMs || now() < this.endMs + this.stepMs) return;
    const steps = Math.floor((now() - this.endMs) / this.stepMs);
    const most = Math.round(SPAN_MS[this.span] / this.stepMs);
    this.endMs += this.stepMs * steps;
    for (const [name, values] of Object.entries(this.columns)) {
      for (let missed = Math.min(steps, most) - 1; missed > 0; missed -= 1) values.push(null);
      values.push(point[name] ?? null);
      values.splice(0, Math.max(0, values.length - most));
    }
  }
}

// `series`: {label, column, colour, area}. `between`: the space between the first two is filled where the first is above.
export class Chart {
  constructor(options) {
    Object.assign(this, { format: String, axis: null, peak: false, between: false, limit: () => 0, ages: false, least: 4, base: 10 }, options);
    this.width = this.height = this.left = 0;
    this.canvas = h('canvas', { tabIndex: 0, role: 'img' });
    this.canvas.chart = this;
    this.values = this.series.map(() => h('b'));
    this.keys = h('span', { class: 'keys' }, this.series.map((series, at) => {
      const line = h('i', { class: `key-${series.colour}` });
      return h('span', null, line, this.series.length > 1 ? `${series.label} ` : '', this.values[at]);
    }));
    this.element = h('figure', { class: 'chart' }, h('figcaption', null, h('b', null, this.title), this.keys), this.canvas);
    this.canvas.addEventListener('pointermove', (event) => {
      cursor = Math.min(1, Math.max(0, (event.offsetX - this.left) / (this.width - this.left)));
      drawSoon();
    });
    for (const kind of ['pointerleave', 'blur']) this.canvas.addEventListener(kind, () => { cursor = null; drawSoon(); });
    this.canvas.addEventListener('keydown', (event) => this.key(event));
    sizes.observe(this.canvas);
    charts.add(this);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    cursor = Math.min(1, Math.max(0, (cursor ?? 1) + step * (event.shiftKey ? 0.1 : 1 / 60)));
    drawSoon();
    say(`${clock(this.timeAt(cursor))}: ${this.series.map((series) => `${series.label} ${this.told(series, cursor)}`).join(', ')}`);
  }

  resize({ width, height }) {
    const scale = devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.draw();
  }

  get spanMs() { return SPAN_MS[this.history.span]; }
  timeAt(part) { return wall() - (1 - part) * this.spanMs; }

  valueAt(series, part) {
    const values = this.history.columns[series.column] || [];
    if (part == null) return series.now ? series.now() : values.at(-1);
    if (store.state === 'lost' && this.timeAt(part) > store.lostAt) return null;
    const back = Math.round((this.history.endMs - this.timeAt(part)) / this.history.stepMs);
    return values[values.length - 1 - Math.max(0, back)];
  }
  told(series, part) {
    const value = this.valueAt(series, part);
    return value == null ? 'not known' : this.format(value);
  }

  top(most) {
    const limit = this.limit();
    if (limit > 0 && most > limit / 2) most = Math.max(most, limit);
    if (this.ages) return AGES_MS.find((age) => age >= most) || most;
    most = Math.max(most, this.least);
    const unit = this.base === 1024 ? 1024 ** Math.floor(Math.log(most) / Math.log(1024)) : 1;
    const ten = 10 ** Math.floor(Math.log10(most / unit));
    return unit * ten * ([1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10].find((factor) => most <= factor * ten * unit * 1.0001) || 10);
  }

  draw() {
    if (!this.width) return;
    const scale = devicePixelRatio || 1;
    const g = this.canvas.getContext('2d');
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, this.width, this.height);
    const data = this.series.map((series) => this.history.columns[series.column] || []);
    let most = 0;
    for (const values of data) for (const value of values) if (value > most) most = value;
    const top = this.top(most);
    this.grid(g, top);
    const end = this.history.endMs;
    const place = {
      x: (at, length) => this.left + (1 - (wall() - end + (length - 1 - at) * this.history.stepMs) / this.spanMs) * (this.width - this.left),
      y: (value) => this.height - BOTTOM - (value / top) * (this.height - BOTTOM - TOP),
    };
    g.save();
    g.beginPath();
    g.rect(this.left, 0, this.width - this.left, this.height - BOTTOM + 1);
    g.clip();
    if (this.between) this.fillBetween(g, data, place);
    this.series.forEach((series, at) => this.line(g, series, data[at], place));
    this.limitLine(g, top, place);
    if (store.state === 'lost') this.lost(g);
    g.restore();
    this.drawCursor(g, place);
    this.series.forEach((series, at) => setText(this.values[at], this.told(series, cursor)));
    if (cursor == null) {
      const ends = this.series.map((series, at) => `${series.label} ${this.format(data[at].find((v) => v != null) || 0)} to ${this.told(series, null)}`);
      setAttribute(this.canvas, 'aria-label', `${this.title}, last ${SPAN_NAME[this.history.span]}: ${ends.join(', ')}. Arrow keys read values.`);
    }
  }

  grid(g, top) {
    const { width, height } = this;
    const label = this.axis || this.format;
    g.font = `10.5px ${getComputedStyle(document.body).fontFamily}`;
    const marks = [0, 0.5, 1].map((part) => [part, label(top * part)]);
    this.left = Math.ceil(Math.max(...marks.map(([, text]) => g.measureText(text).width)) + 7);
    g.lineWidth = 1;
    for (const [part, text] of marks) {
      const y = Math.round(height - BOTTOM - part * (height - BOTTOM - TOP)) + 0.5;
      g.strokeStyle = colour(part ? 'line' : 'line-strong');
      g.beginPath();
      g.moveTo(this.left, y);
      g.lineTo(width, y);
      g.stroke();
      g.fillStyle = colour('faint');
      g.textAlign = 'right';
      g.textBaseline = 'middle';
      g.fillText(text, this.left - 6, y);
    }
    g.textAlign = 'center';
    g.textBaseline = 'alphabetic';
    const every = TICKS_MS[this.history.span] * (width < 300 ? 2 : 1);
    const from = wall() - this.spanMs;
    for (let at = Math.ceil(from / every) * every; at < wall(); at += every) {
      const x = this.left + ((at - from) / this.spanMs) * (width - this.left);
      if (x > this.left + 16 && x < width - 16) g.fillText(clock(at, false), x, height - 4);
    }
  }

  // Each stretch of values without a gap.
  * stretches(values) {
    let from = -1;
    for (let at = 0; at <= values.length; at += 1) {
      if (at < values.length && values[at] != null) {
        if (from < 0) from = at;
      } else if (from >= 0) {
        yield [from, at - 1];
        from = -1;
      }
    }
  }

  line(g, series, values, { x, y }) {
    const shade = colour(series.colour);
    for (const [from, to] of this.stretches(values)) {
      g.beginPath();
      for (let at = from; at <= to; at += 1) g.lineTo(x(at, values.length), y(values[at]));
      if (from === to) g.lineTo(x(to, values.length) + 2, y(values[to]));
      g.strokeStyle = shade;
      g.lineWidth = series.area ? 1.6 : 1.4;
      g.lineJoin = 'round';
      g.stroke();
      if (!series.area) continue;
      g.lineTo(x(to, values.length), this.height - BOTTOM);
      g.lineTo(x(from, values.length), this.height - BOTTOM);
      g.globalAlpha = 0.1;
      g.fillStyle = shade;
      g.fill();
      g.globalAlpha = 1;
    }
  }

  fillBetween(g, [above, below], { x, y }) {
    const length = Math.min(above.length, below.length);
    g.beginPath();
    for (let at = 0; at < length; at += 1) g.lineTo(x(at, length), y(Math.max(above[at] ?? 0, below[at] ?? 0)));
    for (let at = length - 1; at >= 0; at -= 1) g.lineTo(x(at, length), y(below[at] ?? 0));
    g.fillStyle = colour('warn-mark');
    g.globalAlpha = 0.26;
    g.fill();
    g.globalAlpha = 1;
  }

  limitLine(g, top, { y }) {
    const limit = this.limit();
    if (!(limit > 0 && limit <= top * 1.001)) return;
    g.setLineDash([4, 3]);
    g.strokeStyle = colour('bad-mark');
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(this.left, y(limit));
    g.lineTo(this.width, y(limit));
    g.stroke();
    g.setLineDash([]);
  }

  // The time since the connection was lost, hatched: no values are known.
  lost(g) {
    const from = Math.max(this.left, this.left + (1 - (wall() - store.lostAt) / this.spanMs) * (this.width - this.left));
    const bottom = this.height - BOTTOM;
    g.save();
    g.beginPath();
    g.rect(from, 0, this.width - from, bottom);
    g.clip();
    g.fillStyle = colour('paper');
    g.fillRect(from, 0, this.width - from, bottom);
    g.strokeStyle = colour('line-strong');
    g.lineWidth = 1;
    g.beginPath();
    for (let x = from - bottom; x < this.width; x += 6) {
      g.moveTo(x, bottom);
      g.lineTo(x + bottom, 0);
    }
    g.stroke();
    g.restore();
  }

  drawCursor(g, { y }) {
    if (cursor == null) return;
    const x = Math.round(this.left + cursor * (this.width - this.left)) + 0.5;
    g.strokeStyle = colour('faint');
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(x, TOP - 6);
    g.lineTo(x, this.height - BOTTOM);
    g.stroke();
    g.fillStyle = colour('muted');
    g.textAlign = cursor > 0.5 ? 'right' : 'left';
    g.fillText(clock(this.timeAt(cursor)), x + (cursor > 0.5 ? -5 : 5), TOP + 3);
    for (const series of this.series) {
      const value = this.valueAt(series, cursor);
      if (value == null) continue;
      g.fillStyle = colour(series.colour);
      g.beginPath();
      g.arc(x, y(value), 2.8, 0, 7);
      g.fill();
    }
  }
}

// A queue's last ten minutes in its row: one path, on the scale of its own largest depth.
export function sparkPath(row) {
  const points = row.spark.length ? [...row.spark, row.items] : [row.items, row.items];
  const most = Math.max(...points);
  const step = 100 / Math.max(1, 60);
  const first = 100 - (points.length - 1) * step;
  return {
    isFlat: !most,
    line: points.map((value, at) => `${at ? 'L' : 'M'}${(first + at * step).toFixed(1)} ${(18.5 - (most ? value / most : 0) * 17).toFixed(1)}`).join(''),
    first: first.toFixed(1),
  };
}
