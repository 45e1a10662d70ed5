"use strict";
// Draws the report. Names of queues are hostile: they enter the page by textContent, and plotly by `plain`.
(async () => {
  const element = (kind, given = {}, ...children) => {
    const made = document.createElement(kind);
    for (const [name, value] of Object.entries(given)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name in made) made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  };
  const page = document.getElementById("page");
  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  if (typeof DecompressionStream === "undefined") {
    page.append(element("p", { textContent: "This browser is too old: it needs DecompressionStream (2023)." }));
    return;
  }
  const data = JSON.parse(await unpack("data"));
  document.head.append(element("script", { textContent: await unpack("library") }));

  // figures in words

  const UNTOLD = "–";
  const count = new Intl.NumberFormat();
  const short = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });
  const whole = (number) => (number === null ? UNTOLD : count.format(number));
  const unit = (number, units, last) => {
    if (number === null) return UNTOLD;
    for (const [name, size] of units) if (number >= size) return `${short.format(number / size)} ${name}`;
    return last(number);
  };
  const bytes = (number) => unit(number, [["GB", 2 ** 30], ["MB", 2 ** 20], ["kB", 1024]], (few) => `${few} B`);
  const span = (seconds) =>
    unit(seconds, [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]], (few) =>
      few ? `${short.format(few * 1000)} ms` : "0 s");
  const plain = (text) =>
    text.replace(/[&<>"'$]/g, (letter) => `&#${letter.codePointAt(0)};`).replace(/[\u0000-\u001f\u007f\u2028\u2029]/g, "\ufffd");
  const brief = (name) => {
    const letters = [...name];
    return letters.length > 20 ? [...letters.slice(0, 8), "…", ...letters.slice(-11)].join("") : name;
  };
  const COLUMNS = [
    ["bytes", "journal", bytes], ["added", "added", whole], ["removed", "removed", whole], ["depth", "depth", whole],
    ["opens", "open", whole], ["redelivered", "redelivered", whole], ["dead", "dead letters", whole],
    ["size_median", "size p50", bytes], ["size_99", "size p99", bytes], ["size_max", "size max", bytes],
    ["age_median_s", "age p50", span], ["age_max_s", "age max", span],
    ["wait_median_s", "waited p50", span], ["wait_99_s", "waited p99", span],
  ];
  const SUMS = ["bytes", "added", "removed", "depth", "opens", "redelivered", "dead"];
  const MOST = ["size_max", "age_max_s"];

  // what is chosen

  const several = data.hosts.some((host) => host !== "");
  const state = {
    kind: "queues", sort: "added", up: false, top: 8, query: "", picked: new Set(), shown: 50, utc: false, range: null,
  };

  const queues = data.rows.queue.map((name, at) => {
    const row = { name, host: data.hosts[at] };
    for (const [field] of COLUMNS) row[field] = data.rows[field][at];
    return row;
  });
  const ALL = "all queues together";
  data.series.all = data.series.all[""] ? { [ALL]: data.series.all[""] } : {};
  const grouped = (key) => {
    const groups = new Map();
    for (const row of queues) {
      const name = key(row);
      let group = groups.get(name);
      if (!group) {
        group = { name, host: name };
        for (const [field] of COLUMNS) group[field] = null;
        groups.set(name, group);
      }
      for (const field of SUMS) if (row[field] !== null) group[field] = (group[field] ?? 0) + row[field];
      for (const field of MOST) if (row[field] !== null) group[field] = Math.max(group[field] ?? 0, row[field]);
    }
    return [...groups.values()];
  };
  const bare = (row) => (row.host === "" ? row.name : row.name.slice(row.host.length + 1));
  const kinds = { queues, all: grouped(() => ALL) };
  if (several) Object.assign(kinds, { hosts: grouped((row) => row.host), names: grouped(bare) });
  const LABELS = { all: ALL, queues: "each queue", hosts: "hosts", names: "queues of one name, over all hosts" };

  const found = () => {
    const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = kinds[state.kind].filter((row) => words.every((word) => row.name.toLowerCase().includes(word)));
    const order = (row) => (state.sort === "name" ? row.name : row[state.sort] ?? -1);
    rows.sort((one, two) => {
      const [a, b] = [order(one), order(two)];
      return (a < b ? -1 : a > b ? 1 : 0) * (state.up ? 1 : -1);
    });
    return rows;
  };
  const chosen = (rows) =>
    state.picked.size ? kinds[state.kind].filter((row) => state.picked.has(row.name)) : rows.slice(0, state.top);

  // drawing

  const PALETTE = ["#4c8dd6", "#e58a2b", "#3fa66b", "#d64f5c", "#9a6fd0", "#b0803f", "#d977b2", "#7f8a95", "#a3a832", "#2fb0bd"];
  const color = (at) => PALETTE[at % PALETTE.length];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isNarrow = () => window.innerWidth < 600;
  const zone = () => (state.utc ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone);
  // plotly draws times as they are in UTC: so they are moved
  const shown = (ms) => (state.utc ? ms : ms - new Date(ms).getTimezoneOffset() * 60000);
  const when = (ms) =>
    new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", timeZone: zone() }).format(ms);

  const layout = (more = {}) => ({
    margin: { l: isNarrow() ? 42 : 56, r: 8, t: 8, b: 40 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { color: style("--fore"), family: "system-ui, sans-serif", size: isNarrow() ? 10 : 12 },
    hoverlabel: { bgcolor: style("--soft"), bordercolor: style("--edge"), font: { color: style("--fore") }, namelength: 60 },
    dragmode: isNarrow() ? false : "zoom", ...more,
    xaxis: { gridcolor: style("--edge"), linecolor: style("--edge"), zeroline: false, automargin: true, ...more.xaxis },
    yaxis: { gridcolor: style("--edge"), zeroline: false, rangemode: "tozero", automargin: true, ...more.yaxis },
  });
  const config = {
    responsive: true, displaylogo: false, showTips: false, doubleClick: "reset",
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
  };

  // A step outside of a line is not known: null is a gap.
  const line = (row, at, values) => {
    const series = data.series[state.kind][row.name];
    const some = series && values(series);
    if (!some) return null;
    const [x, y] = [[], []];
    for (let step = 0; step < data.steps; step += 1) {
      x.push(shown(data.firstMs + step * data.stepMs));
      y.push(some[step - series[0]] ?? null);
    }
    return {
      x, y, name: plain(row.name), mode: some.length === 1 ? "markers" : "lines", connectgaps: false,
      line: { color: color(at), width: 1.6 }, marker: { color: color(at) },
      hovertemplate: "%{x|%Y-%m-%d %H:%M:%S}<br>%{y:,.4~g}",
    };
  };
  const rate = (values) => values && values.map((number) => (number * 1000) / data.stepMs);
  const LINES = {
    arrivals: ["Arrivals a second", (series) => rate(series[1])],
    removals: ["Removals a second", (series) => rate(series[2])],
    depth: ["Depth, open reads included", (series) => series[3]],
  };
  const bars = (field, label, at) => (rows) => ({
    type: "bar", name: label, x: rows.map((row) => plain(row.name)), y: rows.map((row) => row[field]),
    marker: { color: PALETTE[at] }, hovertemplate: "%{x}<br>%{y:,.4~g}<extra>%{fullData.name}</extra>",
  });
  const BARS = {
    ages: ["Age of items that are there, seconds", [["age_median_s", "median", 0], ["age_max_s", "oldest", 1]]],
    waits: ["Wait until first handed out, seconds", [["wait_median_s", "median", 0], ["wait_99_s", "99th percentile", 1]]],
    retries: ["Retries and dead letters, items", [["redelivered", "redelivered", 0], ["dead", "dead letters", 3]]],
  };
  const HISTOGRAMS = {
    "all-sizes": ["All queues: items by size", data.sizes, bytes],
    "all-ages": ["All queues: items still there, by age", data.ages, span],
    "all-waits": ["All queues: items by wait", data.waits, (ms) => span(ms / 1000)],
    "all-deliveries": ["All queues: items by times handed out", data.deliveries, (times) => times],
  };

  const key = (paint, text) =>
    element("li", {}, element("i", { style: `background:${paint}` }), element("span", { textContent: text }));
  const plots = new Map(); // by name: its element and section
  const section = (name, title, fields = []) => {
    const plot = element("div", { className: "plot", id: `plot-${name}` });
    const colors = element("ul", { className: "keys" }, ...fields.map(([, label, at]) => key(PALETTE[at], label)));
    const made = element("section", {}, element("h2", { textContent: title }), fields.length ? colors : null, plot);
    plots.set(name, { plot, section: made });
    return made;
  };
  const draw = (name, traces, more) => {
    const { plot, section: around } = plots.get(name);
    around.hidden = !traces.length;
    if (!traces.length) return;
    const isNew = !plot.on;
    Plotly.react(plot, traces, layout(more), config);
    if (isNew && name in LINES) plot.on("plotly_relayout", (change) => follow(name, change));
  };
  // A zoom into one is a zoom into all.
  const follow = (name, change) => {
    const isReset = Boolean(change["xaxis.autorange"]);
    if (!isReset && change["xaxis.range[0]"] === undefined) return;
    state.range = isReset ? null : [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    for (const other of Object.keys(LINES)) {
      const drawn = plots.get(other);
      if (other === name || !drawn.plot.on || drawn.section.hidden) continue;
      Plotly.relayout(drawn.plot, state.range ? { "xaxis.range": state.range.slice() } : { "xaxis.autorange": true });
    }
  };
  const legend = element("ul", { className: "keys", id: "keys" });
  const note = element("p", { className: "dim", id: "note" });

  const drawAll = () => {
    const rows = chosen(found());
    legend.replaceChildren(...rows.map((row, at) => key(color(at), row.name)));
    const lost = rows.filter((row) => !data.series[state.kind][row.name] && row.added);
    note.textContent = lost.length
      ? `No lines of ${lost.length} of these: the page has those of the leading queues. report -q, or --tables, has the others.`
      : "";
    const range = state.range ? { range: state.range } : { autorange: true };
    for (const [name, [, values]] of Object.entries(LINES)) {
      const traces = rows.map((row, at) => line(row, at, values)).filter(Boolean);
      const axis = { type: "date", title: { text: zone(), standoff: 4, font: { size: 11 } }, ...range };
      draw(name, traces, { xaxis: axis, hovermode: isNarrow() ? "closest" : "x unified" });
    }
    for (const [name, [, fields]] of Object.entries(BARS)) {
      const known = fields.filter(([field]) => rows.some((row) => row[field] !== null));
      const some = rows.some((row) => known.some(([field]) => row[field]));
      const traces = some ? known.map(([field, label, at]) => bars(field, label, at)(rows)) : [];
      const axis = {
        type: "category", tickangle: -25, showticklabels: !isNarrow() || rows.length < 5, tickmode: "array",
        tickvals: rows.map((row) => plain(row.name)), ticktext: rows.map((row) => plain(brief(row.name))),
      };
      draw(name, traces, { xaxis: axis, hovermode: "closest" });
    }
    for (const [name, [, pairs, words]] of Object.entries(HISTOGRAMS)) {
      const x = pairs.map(([from]) => plain(words(from)));
      const trace = { type: "bar", x, y: pairs.map(([, items]) => items), marker: { color: PALETTE[0] }, hovertemplate: "from %{x}<br>%{y:,} items<extra></extra>" };
      draw(name, pairs.length ? [trace] : [], { xaxis: { type: "category" }, yaxis: name === "all-deliveries" ? { type: "log", dtick: 1 } : {} });
    }
  };

  const body = element("tbody");
  const heads = element("tr");
  const more = element("button", { type: "button", onclick: () => { state.shown += 200; table(); } });
  const pick = (row, on) => {
    if (on) state.picked.add(row.name);
    else state.picked.delete(row.name);
    update();
  };
  const table = () => {
    const rows = found();
    const picked = new Set(chosen(rows).map((row) => row.name));
    heads.replaceChildren(
      ...[["name", state.kind === "hosts" ? "host" : "queue"], ...COLUMNS].map(([field, label]) =>
        element("th", { scope: "col", "aria-sort": state.sort === field ? (state.up ? "ascending" : "descending") : "none" },
          element("button", {
            type: "button", textContent: label + (state.sort === field ? (state.up ? " ↑" : " ↓") : ""),
            onclick: () => {
              state.up = state.sort === field ? !state.up : field === "name";
              state.sort = field;
              update();
            },
          }))));
    body.replaceChildren(
      ...rows.slice(0, state.shown).map((row) =>
        element("tr", { className: picked.has(row.name) ? "picked" : "" },
          element("td", { title: row.name },
            element("label", {},
              element("input", {
                type: "checkbox", checked: state.picked.has(row.name),
                onchange: (event) => pick(row, event.target.checked),
              }),
              element("span", { textContent: row.name }))),
          ...COLUMNS.map(([field, , words]) => element("td", { textContent: words(row[field]) })))));
    more.hidden = rows.length <= state.shown;
    more.textContent = `Show more of ${count.format(rows.length)}`;
    matches.textContent = `${count.format(rows.length)} of ${count.format(kinds[state.kind].length)}`;
    clear.hidden = !state.picked.size;
    clear.textContent = `Clear selection (${state.picked.size})`;
  };

  // the bar

  const matches = element("span", { className: "dim", id: "matches" });
  const clear = element("button", { type: "button", id: "clear", onclick: () => { state.picked.clear(); update(); } });
  const choice = (id, options, value, changed) =>
    element("select", { id, onchange: (event) => { changed(event.target.value); update(); } },
      ...options.map(([key, text]) => element("option", { value: key, textContent: text, selected: key === value })));
  const sort = choice("sort", COLUMNS.map(([field, label]) => [field, label]), "added", (field) => {
    state.sort = field;
    state.up = false;
  });
  const bar = element("div", { className: "bar" },
    element("input", {
      type: "search", id: "search", placeholder: "Search", "aria-label": "Search hosts and queues",
      oninput: (event) => { state.query = event.target.value; state.shown = 50; update(); },
    }),
    matches,
    element("label", {}, "Show", choice("kind", Object.keys(kinds).map((kind) => [kind, LABELS[kind]]), "queues", (kind) => {
      state.kind = kind;
      state.picked.clear();
    })),
    element("label", {}, "Top", choice("top", ["3", "5", "8", "20", "50"].map((n) => [n, n]), "8", (n) => { state.top = Number(n); })),
    element("label", {}, "by", sort),
    clear,
    element("label", {}, element("input", { type: "checkbox", id: "utc", onchange: (event) => { state.utc = event.target.checked; state.range = null; say(); update(); } }), "UTC"),
    element("label", {}, "Theme", choice("theme", [["", "system"], ["light", "light"], ["dark", "dark"]], "", (theme) => {
      if (theme) document.documentElement.dataset.theme = theme;
      else delete document.documentElement.dataset.theme;
    })));

  const times = element("p", { className: "dim", id: "times" });
  const say = () => {
    times.textContent = data.beginMs === null
      ? "The journals hold no item."
      : `Items from ${when(data.beginMs)} to ${when(data.endMs)} (${zone()}), in steps of ${span(data.stepMs / 1000)}.`;
  };
  const sum = (field) => {
    const known = queues.map((row) => row[field]).filter((number) => number !== null);
    return known.length ? known.reduce((one, two) => one + two, 0) : null;
  };
  const total = (label, text) => element("span", {}, element("b", { textContent: text }), label);
  const totals = element("div", { className: "totals" },
    several ? total("hosts", whole(kinds.hosts.length)) : null, total("queues", whole(queues.length)),
    total("items there", whole(sum("depth"))), total("added", whole(sum("added"))), total("removed", whole(sum("removed"))),
    total("redelivered", whole(sum("redelivered"))), total("dead letters", whole(sum("dead"))), total("of journal", bytes(sum("bytes"))));

  page.append(
    times, totals, bar, legend, note,
    element("div", { className: "plots", id: "plots" },
      ...Object.entries({ ...LINES, ...BARS }).map(([name, [title, fields]]) => section(name, title, Array.isArray(fields) ? fields : []))),
    element("h2", { textContent: "Queues" }),
    element("p", { className: "dim", textContent: "A tick draws that row; without ticks the first rows are drawn." }),
    element("div", { className: "scroll", tabIndex: 0 }, element("table", { id: "rows" }, element("thead", {}, heads), body)),
    more,
    element("div", { className: "plots" }, ...Object.entries(HISTOGRAMS).map(([name, [title]]) => section(name, title))),
    element("h2", { textContent: "What cannot be known" }),
    element("ul", { className: "dim" }, ...data.unknown.map((text) => element("li", { textContent: text }))));

  const update = () => {
    if (document.activeElement !== sort && COLUMNS.some(([field]) => field === state.sort)) sort.value = state.sort;
    table();
    drawAll();
  };
  say();
  update();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let wide = window.innerWidth;
  window.addEventListener("resize", () => {
    if ((wide < 600) !== isNarrow()) drawAll();
    wide = window.innerWidth;
  });
  document.body.dataset.drawn = "yes";
})();
