"use strict";
// The page of `detent report`. All numbers but the bands of the curves were computed in Python (see docs/report.md);
// this draws them. Data: the JSON in #data; its form is written in report/page.py.
(() => {
  const $ = id => document.getElementById(id);
  let D = JSON.parse($("data").textContent);

  const state = {
    task: "", algo: "", head: "", preset: "", status: "", text: "",
    x: "steps", centre: "mean", band: "sd", seeds: true, smooth: 0, hidden: new Set(),
    baseline: null, policy: null, observation: 0, sort: "name", down: false, page: 0, open: new Set(),
  };
  const PAGE = 25, GRID = 200;

  // --- Small helpers ---

  /** An element; text is always text, never markup. */
  function h(tag, attributes, ...children) {
    const e = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
      else if (value === true) e.setAttribute(name, "");
      else if (value !== false && value != null) e.setAttribute(name, value);
    }
    e.append(...children.flat().filter(c => c != null));
    return e;
  }
  function format(digits) {
    const f = new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    return { format: x => f.format(x).replace("-", "−") };
  }
  const whole = format(0), tenth = format(1), hundredth = format(2), thousandth = format(3);
  const count = (n, what) => `${whole.format(n)} ${what}${n === 1 ? "" : "s"}`;
  /** A return, with a number of digits that suits its size. */
  function value(x) {
    if (x == null || !isFinite(x)) return "–";
    const size = Math.abs(x);
    return (size >= 1000 ? whole : size >= 10 ? tenth : size >= 1 ? hundredth : thousandth).format(x);
  }
  /** Numbers shown together have as many digits as the largest. */
  function values(...xs) {
    const size = Math.max(...xs.filter(x => x != null && isFinite(x)).map(Math.abs));
    const f = size >= 1000 ? whole : size >= 10 ? tenth : size >= 1 ? hundredth : thousandth;
    return xs.map(x => (x == null || !isFinite(x) ? "–" : f.format(x)));
  }
  function duration(s) {
    if (s == null) return "–";
    if (s < 60) return `${tenth.format(s)} s`;
    const m = Math.round(s / 60);
    return m < 60 ? `${m} min` : `${whole.format(Math.floor(m / 60))} h ${String(m % 60).padStart(2, "0")} min`;
  }
  function steps(x) {
    const [size, unit] = x >= 1e6 ? [1e6, "M"] : x >= 1e3 ? [1e3, "k"] : [1, ""];
    return +(x / size).toPrecision(4) + unit;
  }
  function short(x) {
    const size = Math.abs(x), digits = y => String(+y.toPrecision(4)).replace("-", "−");
    return size >= 1e6 ? digits(x / 1e6) + "M" : size >= 1e4 ? digits(x / 1e3) + "k" : size >= 1000 ? whole.format(x) : digits(x);
  }
  function clock(s, step) {
    return step >= 3600 ? `${+(s / 3600).toFixed(1)} h` : step >= 60 ? `${+(s / 60).toFixed(1)} min` : `${+s.toFixed(1)} s`;
  }
  function unpack(text, Kind) {
    const raw = atob(text), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return new Kind(bytes.buffer);
  }
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  function swatch(v) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("width", 26); svg.setAttribute("height", 10); svg.setAttribute("aria-hidden", "true");
    svg.setAttribute("class", "swatch");
    const line = document.createElementNS(svg.namespaceURI, "line");
    for (const [k, w] of Object.entries({ x1: 0, x2: 26, y1: 5, y2: 5, stroke: ink(v), "stroke-width": 3 })) line.setAttribute(k, w);
    if (v.dash.length) line.setAttribute("stroke-dasharray", v.dash.join(" "));
    svg.append(line);
    return svg;
  }
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  /** A variant's colour, lighter on a dark page. */
  function ink(v) {
    const parts = [1, 3, 5].map(i => parseInt(v.colour.slice(i, i + 2), 16));
    return dark.matches ? `rgb(${parts.map(c => Math.round(c + (255 - c) * .28)).join(" ")})` : v.colour;
  }
  const variant = run => D.variants[run.variant];
  const mark = status => ({ diverged: "bad", failed: "bad", damaged: "bad", stopped: "warn", running: "warn" })[status];

  // --- Filters ---

  function passes(run, statusToo = true) {
    const v = variant(run);
    if (state.task && run.task !== state.task) return false;
    for (const part of ["algo", "head", "preset"]) if (state[part] && v[part] !== state[part]) return false;
    if (!statusToo) return true;
    if (state.status && run.status !== state.status) return false;
    if (!state.text) return true;
    run.searched ??= `${run.name} ${run.task} ${v.label} ${v.algo} ${v.head} ${v.preset} seed=${run.seed} ${run.status} ${run.why || ""}`.toLowerCase();
    return state.text.toLowerCase().split(/\s+/).every(word => run.searched.includes(word));
  }
  const chosenRuns = () => D.runs.filter(run => passes(run));

  function select(name, label, options, changed) {
    const e = h("select", { id: `choose-${name}`, onchange: () => { state[name] = e.value; changed(); } },
      options.map(([v, text]) => h("option", { value: v, selected: v === state[name] }, text)));
    return h("label", {}, label, e);
  }
  function drawFilters() {
    const unique = get => [...new Set(D.runs.map(get))].sort();
    const parts = {
      task: ["Task", unique(r => r.task)], algo: ["Algorithm", unique(r => variant(r).algo)],
      head: ["Head", unique(r => variant(r).head)], preset: ["Preset", unique(r => variant(r).preset)],
      status: ["Status", unique(r => r.status)],
    };
    const changed = () => { state.page = 0; drawAll(); };
    const text = h("input", {
      type: "search", id: "choose-text", value: state.text, placeholder: "name, seed=1, …",
      oninput: () => { state.text = text.value; state.page = 0; drawAll(); },
    });
    $("filters").replaceChildren(
      ...Object.entries(parts).map(([name, [label, all]]) => {
        if (state[name] && !all.includes(state[name])) state[name] = "";
        return select(name, label, [["", "all"], ...all.map(v => [v, v])], changed);
      }),
      h("label", {}, "Search", text),
      h("button", {
        type: "button", id: "clear", onclick: () => {
          for (const name of [...Object.keys(parts), "text"]) state[name] = "";
          state.page = 0; drawFilters(); drawAll();
        },
      }, "Clear"),
    );
  }

  // --- Canvas ---

  /** A canvas of the size it has on the screen, cleared; null while it has none. */
  function surface(canvas) {
    const { width, height } = canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    if (!width || !height) return null;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    g.font = "11px system-ui, sans-serif";
    g.lineJoin = "round";
    return { g, width, height };
  }
  function ticks(low, high, wanted, sizes = [1, 2, 2.5, 5, 10]) {
    const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    return every(low, high, sizes.map(s => s * power).find(s => s >= rough * 0.999) || 10 * power);
  }
  function every(low, high, step) {
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
    return { found, step };
  }
  function clockTicks(high, wanted) {
    const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400].find(s => s >= high / wanted);
    return step && high > 5 ? every(0, high, step) : ticks(0, high, wanted);
  }
  /** Draw axes with grid lines; returns the maps from data to pixels. */
  function axes(s, xs, ys, xText, yText, pad = { left: 52, right: 10, top: 8, bottom: 22 }) {
    const { g, width, height } = s;
    const px = x => pad.left + (x - xs.low) / (xs.high - xs.low) * (width - pad.left - pad.right);
    const py = y => height - pad.bottom - (y - ys.low) / (ys.high - ys.low) * (height - pad.top - pad.bottom);
    g.strokeStyle = colour("--rule"); g.fillStyle = colour("--faint"); g.lineWidth = 1;
    g.textAlign = "right"; g.textBaseline = "middle";
    for (const y of ys.ticks) {
      g.beginPath(); g.moveTo(pad.left, Math.round(py(y)) + .5); g.lineTo(width - pad.right, Math.round(py(y)) + .5); g.stroke();
      g.fillText(yText(y), pad.left - 6, py(y));
    }
    g.textBaseline = "top";
    for (const x of xs.ticks) {
      const text = xText(x), half = g.measureText(text).width / 2;
      g.textAlign = px(x) + half > width ? "right" : px(x) - half < 0 ? "left" : "center";
      g.fillText(text, g.textAlign === "right" ? width - 1 : px(x), height - pad.bottom + 6);
    }
    return { px, py, pad };
  }
  function stroke(g, xs, ys, px, py) {
    g.beginPath();
    let pen = false;
    for (let i = 0; i < xs.length; i++) {
      if (!isFinite(ys[i])) { pen = false; continue; }
      if (pen) g.lineTo(px(xs[i]), py(ys[i])); else g.moveTo(px(xs[i]), py(ys[i]));
      pen = true;
    }
    g.stroke();
  }
  function fillBetween(g, xs, low, high, px, py) {
    let i = 0;
    while (i < xs.length) {
      while (i < xs.length && !isFinite(low[i])) i++;
      let j = i;
      while (j < xs.length && isFinite(low[j])) j++;
      if (j > i) {
        g.beginPath();
        for (let k = i; k < j; k++) g.lineTo(px(xs[k]), py(high[k]));
        for (let k = j - 1; k >= i; k--) g.lineTo(px(xs[k]), py(low[k]));
        g.fill();
      }
      i = j;
    }
  }

  // --- Learning curves ---

  function curve(run) {
    if (!run.points) {
      const all = unpack(run.curve, Float32Array), n = all.length / 3;
      run.points = { steps: all.subarray(0, n), seconds: all.subarray(n, 2 * n), returns: all.subarray(2 * n) };
    }
    return run.points;
  }
  /** Returns at evenly spaced x, NaN where the run is not; then the mean over a window around each. */
  function onGrid(run, highest) {
    const key = `${state.x} ${highest} ${state.smooth}`;
    if (run.gridKey === key) return run.grid;
    const { [state.x]: xs, returns } = curve(run), out = new Float64Array(GRID + 1).fill(NaN);
    const near = .02 * highest; // runs that end together end within an iteration of each other
    for (let i = 0, j = 0; i <= GRID && xs.length; i++) {
      const x = highest * i / GRID;
      if (x < xs[0] - near || x > xs[xs.length - 1] + near) continue;
      while (j < xs.length - 2 && xs[j + 1] < x) j++;
      if (xs.length === 1 || x <= xs[0]) { out[i] = returns[0]; continue; }
      const share = Math.min(1, Math.max(0, (x - xs[j]) / (xs[j + 1] - xs[j] || 1)));
      out[i] = returns[j] + share * (returns[j + 1] - returns[j]);
    }
    run.gridKey = key;
    run.grid = state.smooth ? smoothed(out, state.smooth) : out;
    return run.grid;
  }
  function smoothed(ys, reach) {
    const out = new Float64Array(ys.length).fill(NaN);
    for (let i = 0; i < ys.length; i++) {
      if (!isFinite(ys[i])) continue;
      let sum = 0, n = 0;
      for (let k = Math.max(0, i - reach); k <= Math.min(ys.length - 1, i + reach); k++) if (isFinite(ys[k])) { sum += ys[k]; n++; }
      out[i] = sum / n;
    }
    return out;
  }
  function quantile(sorted, q) {
    const at = q * (sorted.length - 1), i = Math.floor(at);
    return sorted[i] + (at - i) * ((sorted[i + 1] ?? sorted[i]) - sorted[i]);
  }
  /** Centre and band over runs at each grid point, and how many runs there are. */
  function bandOf(grids) {
    const n = GRID + 1, made = { centre: new Float64Array(n).fill(NaN), low: new Float64Array(n).fill(NaN), high: new Float64Array(n).fill(NaN), runsAt: new Int32Array(n) };
    for (let i = 0; i < n; i++) {
      const here = grids.map(y => y[i]).filter(isFinite).sort((a, b) => a - b), k = here.length;
      made.runsAt[i] = k;
      if (!k) continue;
      const mean = here.reduce((a, b) => a + b) / k, cut = Math.floor(k / 4), middle = here.slice(cut, k - cut);
      made.centre[i] = state.centre === "mean" ? mean : middle.reduce((a, b) => a + b) / middle.length;
      if (k < 2 || state.band === "none") continue;
      const sd = Math.sqrt(here.reduce((a, b) => a + (b - mean) ** 2, 0) / (k - 1));
      [made.low[i], made.high[i]] = state.band === "sd" ? [made.centre[i] - sd, made.centre[i] + sd]
        : state.band === "range" ? [here[0], here[k - 1]] : [quantile(here, .25), quantile(here, .75)];
    }
    return made;
  }

  let panels = [], studyPanels = [];
  const allPanels = () => [...panels, ...studyPanels];
  const seen = "IntersectionObserver" in window ? new IntersectionObserver(entries => {
    for (const entry of entries) {
      const panel = allPanels().find(p => p.canvas === entry.target);
      if (panel) { panel.visible = entry.isIntersecting; if (panel.visible) drawPanel(panel); }
    }
  }, { rootMargin: "300px" }) : null;

  function drawCurveControls() {
    const changed = () => drawCurves();
    const smooth = h("input", {
      type: "range", id: "smooth", min: 0, max: 30, value: state.smooth, "aria-label": "Smoothing",
      oninput: () => { state.smooth = +smooth.value; label.textContent = `Smoothing: ${smoothing()}`; redraw(); },
    });
    const smoothing = () => state.smooth ? `± ${tenth.format(100 * state.smooth / GRID)}% of the axis` : "none";
    const label = h("span", {}, `Smoothing: ${smoothing()}`);
    const seeds = h("input", { type: "checkbox", id: "seeds", checked: state.seeds, onchange: () => { state.seeds = seeds.checked; redraw(); } });
    $("curve-controls").replaceChildren(
      select("x", "Against", [["steps", "steps"], ["seconds", "wall-clock time"]], changed),
      select("centre", "Line", [["mean", "mean over seeds"], ["iqm", "IQM over seeds"]], redraw),
      select("band", "Band", [["sd", "± standard deviation"], ["quartiles", "quartiles"], ["range", "minimum to maximum"], ["none", "none"]], redraw),
      h("label", {}, label, smooth),
      h("label", { class: "line" }, seeds, "single seeds"),
    );
  }
  function drawLegend(runs) {
    const used = [...new Set(runs.map(r => r.variant))].sort((a, b) => a - b);
    $("legend").replaceChildren(...used.map(index => {
      const v = D.variants[index], b = h("button", {
        type: "button", "aria-pressed": String(!state.hidden.has(v.label)), onclick: () => {
          if (!state.hidden.delete(v.label)) state.hidden.add(v.label);
          b.setAttribute("aria-pressed", String(!state.hidden.has(v.label)));
          redraw();
        },
      }, swatch(v), v.label);
      return b;
    }));
  }
  function drawCurves() {
    const runs = chosenRuns().filter(r => r.curve);
    drawLegend(runs);
    for (const p of panels) seen?.unobserve(p.canvas);
    const tasks = [...new Set(runs.map(r => r.task))].sort();
    panels = tasks.map(task => {
      const own = runs.filter(r => r.task === task);
      return newPanel(task, own, h("span", {}, ` · return · ${count(own.length, "run")}`));
    });
    $("panels").className = tasks.length === 1 ? "grid one" : "grid";
    $("panels").replaceChildren(...(tasks.length ? panels.map(p => p.figure) : [h("p", { class: "empty" }, "No run that passes the filters has a return yet.")]));
    for (const p of panels) if (seen) seen.observe(p.canvas); else drawPanel(p);
  }
  function newPanel(task, runs, about) {
    const canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": `Learning curves of ${task}; arrow keys read values` });
    const readout = h("div", { class: "readout", hidden: true, "aria-live": "polite" });
    const panel = { task, canvas, readout, runs, cursor: null, visible: !seen };
    canvas.addEventListener("pointermove", e => point(panel, e.offsetX));
    canvas.addEventListener("pointerleave", () => point(panel, null));
    canvas.addEventListener("blur", () => point(panel, null));
    canvas.addEventListener("keydown", e => {
      const by = { ArrowLeft: -2, ArrowRight: 2, Home: -GRID, End: GRID }[e.key];
      if (!by || !panel.map) return;
      e.preventDefault();
      move(panel, Math.max(0, Math.min(GRID, (panel.cursor ?? GRID / 2) + by)));
    });
    panel.figure = h("figure", {}, h("figcaption", {}, task, about), canvas, readout);
    return panel;
  }
  function redraw() { for (const p of allPanels()) if (p.visible) drawPanel(p); }

  function drawPanel(panel) {
    const s = surface(panel.canvas);
    if (!s) return;
    const shown = panel.runs.filter(r => !state.hidden.has(variant(r).label));
    const highest = Math.max(...panel.runs.map(r => { const xs = curve(r)[state.x]; return xs.length ? xs[xs.length - 1] : 0; })) || 1;
    const groups = new Map();
    for (const r of shown) groups.set(r.variant, [...(groups.get(r.variant) || []), r]);
    panel.groups = [...groups].sort((a, b) => a[0] - b[0]).map(([index, runs]) => ({ v: D.variants[index], runs, ...bandOf(runs.map(r => onGrid(r, highest))) }));
    const xs = Float64Array.from({ length: GRID + 1 }, (_, i) => highest * i / GRID);
    let low = Infinity, high = -Infinity;
    const widen = y => { if (isFinite(y)) { if (y < low) low = y; if (y > high) high = y; } };
    for (const group of panel.groups) {
      for (let i = 0; i <= GRID; i++) { widen(group.centre[i]); widen(group.low[i]); widen(group.high[i]); }
      if (state.seeds) for (const r of group.runs) (state.smooth ? r.grid : curve(r).returns).forEach(widen);
    }
    if (low > high) [low, high] = [0, 1];
    if (low === high) { low -= .5; high += .5; }
    const margin = (high - low) * .04;
    low -= margin; high += margin;
    const wanted = Math.max(2, Math.floor(s.width / 90));
    const xt = state.x === "steps" ? ticks(0, highest, wanted) : clockTicks(highest, wanted);
    const m = axes(s, { low: 0, high: highest, ticks: xt.found }, { low, high, ticks: ticks(low, high, Math.max(3, s.height / 55)).found },
      x => state.x === "steps" ? steps(x) : clock(x, xt.step), short);
    panel.map = { ...m, highest, width: s.width };
    const g = s.g;
    for (const group of panel.groups) {
      g.globalAlpha = .18; g.fillStyle = ink(group.v);
      fillBetween(g, xs, group.low, group.high, m.px, m.py);
    }
    if (state.seeds) for (const group of panel.groups) {
      if (group.runs.length < 2) continue;
      g.globalAlpha = group.runs.length > 12 ? .15 : .35; g.strokeStyle = ink(group.v); g.lineWidth = .8; g.setLineDash([]);
      for (const r of group.runs) if (state.smooth) stroke(g, xs, r.grid, m.px, m.py); else stroke(g, curve(r)[state.x], curve(r).returns, m.px, m.py);
    }
    for (const group of panel.groups) {
      const full = group.runs.length, less = i => group.runsAt[i] < full;
      g.globalAlpha = 1; g.strokeStyle = ink(group.v); g.lineWidth = 2; g.setLineDash(group.v.dash);
      stroke(g, xs, group.centre.map((y, i) => less(i) ? NaN : y), m.px, m.py);
      // Pale where some runs are missing, and broken where another one ends: a mean over fewer seeds is another mean.
      g.globalAlpha = .45;
      stroke(g, xs, group.centre.map((y, i) => less(i) && group.runsAt[i] === (group.runsAt[i - 1] ?? 0) ? y : NaN), m.px, m.py);
      g.setLineDash([]); g.globalAlpha = 1;
      for (const r of group.runs) {
        if (r.status !== "diverged") continue;
        const { [state.x]: x, returns } = curve(r), last = x.length - 1;
        if (last < 0) continue;
        const [a, b] = [m.px(x[last]), m.py(state.smooth ? [...r.grid].filter(isFinite).pop() ?? returns[last] : returns[last])];
        g.beginPath(); g.moveTo(a - 5, b - 5); g.lineTo(a + 5, b + 5); g.moveTo(a - 5, b + 5); g.lineTo(a + 5, b - 5); g.stroke();
      }
    }
    g.globalAlpha = 1;
    if (panel.cursor != null) {
      g.strokeStyle = colour("--faint"); g.lineWidth = 1;
      const x = m.px(highest * panel.cursor / GRID);
      g.beginPath(); g.moveTo(x, m.pad.top); g.lineTo(x, s.height - m.pad.bottom); g.stroke();
    }
  }
  function point(panel, offset) {
    if (!panel.map) return;
    if (offset == null) { panel.cursor = null; panel.readout.hidden = true; drawPanel(panel); return; }
    const share = (offset - panel.map.pad.left) / (panel.map.width - panel.map.pad.left - panel.map.pad.right);
    move(panel, Math.max(0, Math.min(GRID, Math.round(share * GRID))));
  }
  function move(panel, cursor) {
    if (panel.cursor === cursor && !panel.readout.hidden) return;
    panel.cursor = cursor;
    drawPanel(panel);
    const x = panel.map.highest * cursor / GRID;
    const lines = panel.groups.filter(group => group.runsAt[cursor]).sort((a, b) => b.centre[cursor] - a.centre[cursor]);
    const left = panel.map.px(x);
    panel.readout.replaceChildren(h("div", {}, h("b", {}, state.x === "steps" ? `${whole.format(x)} steps` : duration(x))),
      ...lines.slice(0, 10).map(group => h("div", {}, swatch(group.v), ` ${group.v.label}  `, h("b", {}, value(group.centre[cursor])),
        isFinite(group.low[cursor]) ? ` [${values(group.low[cursor], group.high[cursor]).join(", ")}]` : "",
        ` (${group.runsAt[cursor] === group.runs.length ? "" : `${group.runsAt[cursor]} of `}${count(group.runs.length, "run")})`)),
      ...(lines.length > 10 ? [h("div", {}, `and ${lines.length - 10} more`)] : []));
    panel.readout.hidden = false;
    panel.readout.style.top = "28px";
    const room = panel.readout.offsetWidth;
    panel.readout.style.left = `${Math.max(0, left + 14 + room < panel.map.width ? left + 14 : left - 14 - room)}px`;
  }

  // --- Comparison ---

  const SVG = "http://www.w3.org/2000/svg";
  function shape(tag, attributes) {
    const e = document.createElementNS(SVG, tag);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    return e;
  }
  /** An interval as a line with a dot. */
  function forest([x, low, high], least, most, v) {
    const width = 100, at = y => 5 + (most > least ? Math.min(1, Math.max(0, (y - least) / (most - least))) : .5) * (width - 10);
    const svg = shape("svg", { width, height: 14, "aria-hidden": "true" });
    svg.append(shape("line", { x1: 0, x2: width, y1: 7, y2: 7, stroke: "var(--rule)" }));
    if (low != null) svg.append(shape("line", { x1: at(low), x2: at(high), y1: 7, y2: 7, stroke: ink(v), "stroke-width": 3 }));
    if (x != null) svg.append(shape("circle", { cx: at(x), cy: 7, r: 4, fill: ink(v) }));
    return svg;
  }
  /** An estimate with its interval, or with what an interval would need. */
  function within([x, low, high, why]) {
    if (x == null) return "–";
    const [a, b, c] = values(x, low, high);
    return [a, h("span", { class: "range" }, low == null ? (why ? ` (${why})` : "") : ` [${b}, ${c}]`)];
  }
  /** A probability with its interval. */
  function percent([x, low, high]) {
    const f = y => whole.format(100 * y);
    return [f(x), h("span", { class: "range" }, ` [${f(low)}, ${f(high)}]`)];
  }
  function statuses(row) {
    const parts = [];
    for (const [status, n] of Object.entries(row.statuses)) {
      if (status === "finished") continue;
      const text = { copy: `+ ${n} with a duplicate seed`, diverged: `incl. ${n} diverged` }[status] || `+ ${n} ${status}`;
      parts.push(" ", h("span", { class: mark(status) || "warn" }, text));
    }
    return [String(row.runs), ...parts];
  }
  function verdict(versus, isBaseline) {
    if (isBaseline) return h("span", { class: "range" }, "baseline");
    if (!versus) return "–";
    return { higher: h("span", { class: "good" }, "▲ higher"), lower: h("span", { class: "bad" }, "▼ lower"), undecided: h("span", { class: "range" }, "undecided") }[versus.verdict];
  }
  function against(versus, isBaseline) {
    return [
      h("td", { class: "n" }, isBaseline ? "" : versus ? within(versus.difference) : "–"),
      h("td", {}, verdict(versus, isBaseline)),
      h("td", { class: "n" }, isBaseline ? "" : versus ? percent(versus.improvement) : "–"),
    ];
  }
  function drawComparison() {
    const c = D.comparison;
    if (!c.baselines.includes(state.baseline)) state.baseline = c.baselines.includes("gaussian") ? "gaussian" : c.baselines[0] ?? null;
    $("comparison-controls").replaceChildren(
      select("baseline", "Baseline", c.baselines.map(label => [label, label]), drawComparison),
    );
    const fits = row => { const v = D.variants[row.variant]; return (!state.algo || v.algo === state.algo) && (!state.preset || v.preset === state.preset); };
    const shown = c.rows.filter(row => fits(row) && (!state.task || row.task === state.task) && (!state.head || D.variants[row.variant].head === state.head));
    const printed = shown.some(row => row.reference);
    const body = [];
    for (const task of [...new Set(shown.map(row => row.task))]) {
      const rows = shown.filter(row => row.task === task), ends = rows.flatMap(row => row.iqm).filter(Number.isFinite);
      body.push(h("tr", { class: "task" }, h("td", { colspan: printed ? 9 : 8 }, task)));
      for (const row of rows) {
        const v = D.variants[row.variant], base = row.own.includes(state.baseline);
        const [mean, sd] = values(row.mean, row.sd);
        body.push(h("tr", {},
          h("td", {}, swatch(v), v.label), h("td", {}, statuses(row)),
          h("td", { class: "n" }, row.mean == null ? "–" : row.sd == null ? mean : `${mean} ± ${sd}`),
          printed ? h("td", { class: "n" }, row.reference ? values(...row.reference).join(" ± ") : "–") : null,
          h("td", { class: "n" }, within(row.iqm)), h("td", {}, forest(row.iqm, Math.min(...ends), Math.max(...ends), v)),
          ...against(row.versus[state.baseline], base)));
      }
    }
    const head = h("tr", {}, h("th", {}, "Policy"), h("th", {}, "Runs"), h("th", { class: "n" }, "Mean ± sd"),
      printed ? h("th", { class: "n" }, "Printed") : null,
      h("th", { class: "n" }, "IQM"), h("th", {}, ""), h("th", { class: "n" }, `Minus ${state.baseline}`),
      h("th", {}, "Verdict"), h("th", { class: "n" }, "P(better), %"));
    const parts = [
      h("p", { class: "note" }, "A run's final return is the mean of its last 10 iterations, each the mean of the last 100 training episodes. Mean and sd are over seeds, "
        + "as in the paper. IQM: the mean of the middle half of the runs. P(better): the probability that a run beats one of the baseline with the same settings. In brackets: 95% intervals, "
        + "Student's t for the mean (up to 3 runs the IQM), Yuen's for the IQM of more, Welch's for the difference, Clopper and Pearson's (at least 95%) for P(better). They assume roughly "
        + "normal returns: no interval can account for something rare that all of these few runs, or none of them, happened to find. "
        + "The verdict is “higher” or “lower” only if the interval of the difference excludes 0. Diverged runs count with the return they had reached; runs that have not ended are "
        + "listed but not counted."),
      shown.length ? h("div", { class: "scroll" }, h("table", { id: "comparison-table" }, h("thead", {}, head), h("tbody", {}, body))) : h("p", { class: "empty" }, "Nothing to compare."),
    ];
    const across = c.across.filter(fits);
    for (const key of [...new Set(across.map(row => `${D.variants[row.variant].algo}, ${D.variants[row.variant].preset}`))]) {
      const rows = across.filter(row => `${D.variants[row.variant].algo}, ${D.variants[row.variant].preset}` === key);
      const canvas = h("canvas", { role: "img", "aria-label": `Performance profiles, ${key}` });
      parts.push(
        h("h3", {}, `Across ${rows[0].tasks.length} tasks (${key})`),
        h("p", { class: "note" }, `${rows[0].tasks.join(", ")}. Scores are scaled so that the worst run on a task is 0 and the best is 1. The profile shows the share of runs that exceed each score, with Clopper and Pearson's band (at least 95%) for each score separately.`),
        h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["Policy", "Runs", "IQM", "", `Minus ${state.baseline}`, "Verdict", "P(better), %"].map((t, i) => h("th", { class: [2, 4, 6].includes(i) ? "n" : null }, t)))),
          h("tbody", {}, rows.map(row => {
            const v = D.variants[row.variant];
            return h("tr", {}, h("td", {}, swatch(v), v.label), h("td", {}, String(row.runs)), h("td", { class: "n" }, within(row.iqm)), h("td", {}, forest(row.iqm, 0, 1, v)), ...against(row.versus[state.baseline], row.own.includes(state.baseline)));
          })))),
        h("figure", { style: "max-width: 640px; margin-top: .6rem" }, canvas));
      profiles.set(canvas, rows);
    }
    $("comparison").replaceChildren(...parts);
    for (const canvas of [...profiles.keys()]) if (canvas.isConnected) drawProfile(canvas); else profiles.delete(canvas);
  }
  const profiles = new Map();
  function drawProfile(canvas) {
    const s = surface(canvas);
    if (!s) return;
    const at = [0, .2, .4, .6, .8, 1];
    const m = axes(s, { low: 0, high: 1, ticks: at }, { low: 0, high: 1.02, ticks: at }, x => hundredth.format(x), y => `${Math.round(100 * y)}%`);
    for (const row of profiles.get(canvas)) {
      const v = D.variants[row.variant], [x, share, low, high] = row.profile.map(a => a.map(y => y ?? NaN));
      s.g.fillStyle = s.g.strokeStyle = ink(v); s.g.globalAlpha = .15;
      fillBetween(s.g, x, low, high, m.px, m.py);
      s.g.globalAlpha = 1; s.g.lineWidth = 2; s.g.setLineDash(v.dash);
      stroke(s.g, x, share, m.px, m.py);
      s.g.setLineDash([]);
    }
  }

  // --- Action distributions ---

  let dimensions = [];
  function drawPolicyControls() {
    const known = D.policies.filter(p => passes(D.runs[p.run]));
    const chosen = D.runs.filter(r => passes(r)), left = chosen.length - known.length;
    const compact = chosen.some(r => r.compact) ? " Compact files contain no policies." : "";
    if (!known.length) {
      $("policy-controls").replaceChildren(h("p", { class: "empty" }, "No run that passes the filters has a policy to show." + compact));
      $("policy").replaceChildren();
      dimensions = [];
      return;
    }
    const names = known.map(p => D.runs[p.run].name);
    if (!names.includes(state.policy)) { state.policy = names[0]; state.observation = 0; }
    const p = known[names.indexOf(state.policy)];
    state.observation = Math.min(state.observation, p.observations);
    const about = () => state.observation ? `Observation ${state.observation} of ${p.observations}` : `Average over ${p.observations} observations`;
    const label = h("span", {}, about());
    const slider = h("input", {
      type: "range", id: "observation", min: 0, max: p.observations, value: state.observation, "aria-label": "Observation; 0 is the average",
      oninput: () => { state.observation = +slider.value; label.textContent = about(); for (const d of dimensions) drawDimension(d); },
    });
    $("policy-controls").replaceChildren(
      select("policy", "Run", known.map(q => { const r = D.runs[q.run]; return [r.name, `${r.task} · ${variant(r).label} · seed ${r.seed} (${r.name})`]; }), () => { state.observation = 0; drawPolicyControls(); }),
      h("label", {}, label, slider),
      h("p", { class: "note" }, "The probability of each action, dimension by dimension, at observations from the end of training. Dotted lines: the environment's bounds. "
        + (p.kind === "normal" ? "Gaussian samples beyond them are clipped when the policy acts. " : "") + (left > 0 ? `${count(left, "run")} of those chosen ${left === 1 ? "is" : "are"} not in the list: no policy yet, or too many to show.` + compact : "")));
    dimensions = p.low.map((_, d) => {
      const canvas = h("canvas", { role: "img", "aria-label": `Distribution of action dimension ${d + 1}` });
      return { p, d, canvas, figure: h("figure", {}, h("figcaption", {}, h("span", {}, `action ${d + 1}`)), canvas) };
    });
    $("policy").className = dimensions.length > 2 ? "grid small" : "grid";
    $("policy").replaceChildren(...dimensions.map(d => d.figure));
    for (const d of dimensions) drawDimension(d);
  }
  function tensor(p) {
    p.numbers ??= unpack(p.values, p.kind === "bins" ? Uint16Array : Float32Array);
    return p.numbers;
  }
  /** Probabilities of the positions of one dimension. */
  function bars({ p, d }) {
    const all = tensor(p), before = p.positions.slice(0, d).reduce((n, xs) => n + xs.length, 0) * p.observations, k = p.positions[d].length;
    const rows = state.observation ? [state.observation - 1] : [...Array(p.observations).keys()];
    return p.positions[d].map((_, i) => rows.reduce((sum, row) => sum + all[before + row * k + i], 0) / rows.length / 65535);
  }
  /** The density of one dimension, as a function of the action. */
  function density({ p, d }) {
    const all = tensor(p), m = p.low.length, size = p.observations * m;
    const rows = state.observation ? [state.observation - 1] : [...Array(p.observations).keys()];
    const at = (part, row) => all[part * size + row * m + d];
    if (p.kind === "normal") return x => rows.reduce((sum, row) => { const z = (x - at(0, row)) / at(1, row); return sum + Math.exp(-z * z / 2) / at(1, row) / 2.50662827; }, 0) / rows.length;
    const [low, high] = span(p, d);
    return x => {
      const u = (x - low) / (high - low);
      if (u <= 0 || u >= 1) return 0;
      return rows.reduce((sum, row) => sum + Math.exp(at(2, row) + at(0, row) * Math.log(u) + at(1, row) * Math.log1p(-u)), 0) / rows.length / (high - low);
    };
  }
  /** Where a Beta lives: between the bounds, or between -1 and 1 where actions are not scaled to them. */
  const span = (p, d) => p.scaled ? [p.low[d], p.high[d]] : [-1, 1];
  function reach({ p, d }) {
    let [low, high] = [p.low[d] ?? Infinity, p.high[d] ?? -Infinity];
    if (p.kind === "normal") {
      const all = tensor(p), m = p.low.length, size = p.observations * m, room = high > low ? high - low : Infinity, bounds = [low, high];
      for (let row = 0; row < p.observations; row++) {
        const [mean, std] = [all[row * m + d], all[size + row * m + d]];
        low = Math.min(low, Math.max(mean - 3 * std, bounds[0] - room)); high = Math.max(high, Math.min(mean + 3 * std, bounds[1] + room));
      }
    } else if (p.kind === "bins") { low = Math.min(low, ...p.positions[d]); high = Math.max(high, ...p.positions[d]); }
    else { low = Math.min(low, span(p, d)[0]); high = Math.max(high, span(p, d)[1]); }
    const step = p.kind === "bins" ? (high - low) / Math.max(1, p.positions[d].length - 1) * .6 || .5 : (high - low) * .06;
    return [low - step, high + step];
  }
  function drawDimension(dimension) {
    const s = surface(dimension.canvas);
    if (!s) return;
    const { p, d } = dimension, [low, high] = reach(dimension), v = variant(D.runs[p.run]);
    const pad = { left: 42, right: 6, top: 6, bottom: 20 };
    const xs = Float64Array.from({ length: 241 }, (_, i) => low + (high - low) * i / 240);
    const heights = p.kind === "bins" ? bars(dimension) : Array.from(xs, density(dimension));
    const top = Math.max(...heights) * 1.06 || 1;
    const m = axes(s, { low, high, ticks: ticks(low, high, 4).found }, { low: 0, high: top, ticks: ticks(0, top, 3).found }, short, y => p.kind === "bins" ? `${+(100 * y).toFixed(1)}%` : short(y), pad);
    const g = s.g;
    g.fillStyle = g.strokeStyle = ink(v);
    if (p.kind === "bins") {
      const places = p.positions[d], gap = places.length > 1 ? Math.min(...places.slice(1).map((x, i) => x - places[i]).filter(x => x > 0)) : 1;
      const width = Math.max(1, (m.px(gap) - m.px(0)) * .82);
      heights.forEach((y, i) => g.fillRect(m.px(places[i]) - width / 2, m.py(y), width, m.py(0) - m.py(y)));
    } else {
      g.globalAlpha = .25;
      fillBetween(g, xs, new Float64Array(xs.length), heights, m.px, m.py);
      g.globalAlpha = 1; g.lineWidth = 2;
      stroke(g, xs, heights, m.px, m.py);
    }
    g.strokeStyle = colour("--faint"); g.lineWidth = 1; g.setLineDash([2, 3]);
    for (const bound of [p.low[d], p.high[d]]) if (bound != null && bound >= low && bound <= high) { g.beginPath(); g.moveTo(m.px(bound), pad.top); g.lineTo(m.px(bound), m.py(0)); g.stroke(); }
    g.setLineDash([]);
  }

  // --- Runs ---

  const COLUMNS = [
    ["name", "Run", r => r.name], ["task", "Task", r => r.task], ["algo", "Algorithm", r => variant(r).algo], ["head", "Head", r => variant(r).head],
    ["preset", "Preset", r => variant(r).preset], ["seed", "Seed", r => r.seed, 1], ["final", "Final return", r => r.final, 1], ["steps", "Steps", r => r.steps, 1],
    ["rate", "Steps/s", r => r.seconds ? r.steps / r.seconds : null, 1], ["seconds", "Wall time", r => r.seconds, 1], ["status", "Status", r => r.status],
  ];
  function status(run) {
    const silent = run.updated ? D.generated - run.updated : 0;
    const more = run.status === "running" ? ` ${run.asked ? `${Math.min(100, Math.floor(100 * run.steps / run.asked))}%` : ""}${silent > 600 ? `, silent for ${duration(silent)}` : ""}` : "";
    return h("span", { class: mark(run.status), title: run.why }, run.status + more);
  }
  function drawRuns() {
    const get = COLUMNS.find(c => c[0] === state.sort)[2];
    const runs = chosenRuns().map(r => [get(r), r]);
    runs.sort(([a], [b]) => a == null ? 1 : b == null ? -1 : (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true })) * (state.down ? -1 : 1));
    const pages = Math.max(1, Math.ceil(runs.length / PAGE));
    state.page = Math.min(state.page, pages - 1);
    const head = h("tr", {}, COLUMNS.map(([key, label, , n]) => h("th", { class: n ? "n" : null, "aria-sort": state.sort === key ? (state.down ? "descending" : "ascending") : "none" },
      h("button", {
        type: "button", "data-sort": key, onclick: () => {
          [state.sort, state.down] = [key, state.sort === key ? !state.down : Boolean(n) && key !== "seed"];
          state.page = 0; drawRuns(); document.querySelector(`[data-sort=${key}]`).focus();
        },
      }, label + (state.sort === key ? (state.down ? " ▾" : " ▴") : "")))));
    const rows = runs.slice(state.page * PAGE, (state.page + 1) * PAGE).flatMap(([, run]) => {
      const v = variant(run), open = state.open.has(run.name);
      const row = h("tr", { class: "run" },
        h("td", {}, h("button", {
          type: "button", class: "link", "aria-expanded": String(open), onclick: () => {
            if (!state.open.delete(run.name)) state.open.add(run.name);
            drawRuns(); [...document.querySelectorAll("#runs button.link")].find(b => b.dataset.run === run.name)?.focus();
          }, "data-run": run.name,
        }, `${open ? "▾" : "▸"} ${run.name}`)),
        h("td", {}, run.task), h("td", {}, v.algo), h("td", {}, v.head), h("td", {}, v.preset), h("td", { class: "n" }, String(run.seed)),
        h("td", { class: "n" }, value(run.final)), h("td", { class: "n" }, whole.format(run.steps)),
        h("td", { class: "n" }, run.seconds ? whole.format(run.steps / run.seconds) : "–"), h("td", { class: "n" }, run.seconds ? duration(run.seconds) : "–"), h("td", {}, status(run)));
      return open ? [row, details(run)] : [row];
    });
    const go = by => () => { state.page += by; drawRuns(); };
    $("runs").replaceChildren(
      h("div", { class: "pager" },
        h("span", { id: "run-count", "aria-live": "polite" }, `${count(runs.length, "run")}${runs.length === D.runs.length ? "" : ` of ${whole.format(D.runs.length)}`}`),
        pages > 1 ? [h("button", { type: "button", disabled: !state.page, onclick: go(-1) }, "Previous"), h("span", {}, `page ${state.page + 1} of ${pages}`),
          h("button", { type: "button", disabled: state.page === pages - 1, onclick: go(1) }, "Next")] : null),
      h("div", { class: "scroll" }, h("table", { id: "run-table" }, h("thead", {}, head), h("tbody", {}, rows))));
  }
  function details(run) {
    const pairs = object => h("dl", { class: "options" }, Object.entries(object).map(([k, v]) => h("div", {}, h("dt", {}, k), h("dd", {}, typeof v === "string" ? v : JSON.stringify(v)))));
    const about = D.machines[run.machine];
    return h("tr", { class: "details" }, h("td", { colspan: COLUMNS.length }, h("div", {},
      run.why ? h("p", { class: mark(run.status) }, `${run.status}: ${run.why}`) : null,
      h("b", {}, "Options"), pairs({ ...D.settings[run.settings], seed: run.seed }),
      h("b", {}, "Versions"), pairs(about.versions), h("b", {}, "Machine"), pairs(about.machine))));
  }

  // --- Tuning ---

  const TRIALS = 20;
  const signed = x => (x > 0 ? "+" : "") + thousandth.format(x);
  function trialTable(s) {
    const name = key => key.replaceAll("_", " ");
    const rank = t => t.score ?? (t.halfway ?? -1e30) - 1e30;
    const all = [...s.trials].sort((a, b) => rank(b) - rank(a) || a.number - b.number);
    const shown = s.open ? all : all.slice(0, TRIALS);
    const row = t => h("tr", {}, h("td", { class: "n" }, String(t.number)),
      h("td", { class: "n" }, t.score != null ? signed(t.score) : h("span", { class: t.state === "failed" ? "bad" : "range", title: t.why }, t.state)),
      ...(t.number ? s.options.map(o => h("td", { class: "n" }, String(t.values[o] ?? "–"))) : [h("td", { colspan: s.options.length, class: "range" }, "the default settings")]));
    return [h("div", { class: "scroll" }, h("table", { class: "trials" }, h("thead", {}, h("tr", {}, ["trial", "score", ...s.options.map(name)].map(text => h("th", { class: "n" }, text)))), h("tbody", {}, shown.map(row)))),
      shown.length < all.length ? h("button", { type: "button", onclick: () => { s.open = true; drawStudies(); } }, `Show all ${whole.format(all.length)} trials`) : null];
  }
  function importanceTable(s) {
    const most = Math.max(...Object.values(s.importances), 1e-9);
    const bar = x => { const svg = shape("svg", { width: 100, height: 12, "aria-hidden": "true" }); svg.append(shape("rect", { y: 1, height: 10, width: 100 * x / most, fill: "var(--focus)" })); return svg; };
    return h("table", { class: "importances" }, h("tbody", {}, Object.entries(s.importances).sort((a, b) => b[1] - a[1]).map(([option, x]) =>
      h("tr", {}, h("td", {}, option.replaceAll("_", " ")), h("td", {}, bar(x)), h("td", { class: "n" }, `${whole.format(100 * x)}%`)))));
  }
  function freshTable(s) {
    const f = s.fresh, own = s.trials.find(t => t.number === s.best)?.score;
    if (!f.trial) return h("p", {}, "No trial scored higher than the default settings.");
    return [h("div", { class: "scroll" }, h("table", { class: "fresh" }, h("thead", {}, h("tr", {}, ["task", "default (IQM)", "best (IQM)", "difference of means", ""].map(text => h("th", {}, text)))),
      h("tbody", {}, f.tasks.map(t => h("tr", {}, h("td", {}, t.task), h("td", {}, within(t.default)), h("td", {}, within(t.best)), h("td", {}, within(t.difference)), h("td", {}, verdict(t, false))))))),
      h("p", { class: "note" }, `The winner's own score, ${signed(own)}, flatters: it won because it was the highest. On fresh seeds it scores higher than the default settings by `, within(f.score), ".")];
  }
  function drawStudies() {
    for (const p of studyPanels) seen?.unobserve(p.canvas);
    studyPanels = [];
    $("tuning").hidden = !D.studies.length;
    $("studies").replaceChildren(...D.studies.flatMap(s => {
      if (s.why) return [h("h3", {}, s.name), h("p", { class: "bad" }, s.why)];
      const own = s.tasks.map(task => newPanel(task, s.curves.flatMap(c => c.runs.map(i => D.runs[i])).filter(r => r.task === task && r.curve),
        h("span", {}, " · return", s.curves.filter(c => c.runs.length).map(c => [" · ", swatch(variant(D.runs[c.runs[0]])), ` ${c.label}`]).flat())));
      studyPanels.push(...own);
      return [
        h("h3", {}, `${s.name}: ${s.algo}, ${s.head}, ${s.tasks.join(", ")}`),
        h("p", { class: "note" }, `${whole.format(s.trials.filter(t => t.number).length)} of ${count(s.asked, "trial")}, ${count(s.seeds, "seed")} each. The score of a trial is 0 for the default settings, and 1 is about the distance between their lowest and their highest return.`),
        s.flags ? h("p", {}, "Best: ", h("code", {}, s.flags)) : null,
        h("h3", {}, "What was tried"), ...trialTable(s),
        h("h3", {}, "What mattered"), s.importances ? importanceTable(s) : h("p", { class: "note" }, "Twenty finished trials are needed to tell."),
        h("h3", {}, "The best trial's curve"), h("div", { class: own.length === 1 ? "grid one" : "grid" }, own.map(p => p.figure)),
        h("h3", {}, "On fresh seeds"), ...(s.fresh ? [freshTable(s)].flat() : [h("p", { class: "note" }, "Not checked yet.")]),
      ].filter(e => e);
    }));
    for (const p of studyPanels) if (seen) seen.observe(p.canvas); else drawPanel(p);
  }

  // --- Everything ---

  function drawHeader() {
    document.title = $("title").textContent = D.title;
    const by = {};
    for (const r of D.runs) by[r.status] = (by[r.status] || 0) + 1;
    const counts = Object.entries(by).sort().map(([status, n]) => `${whole.format(n)} ${status}`).join(", ");
    $("about").replaceChildren(`${count(D.runs.length, "run")} (${counts}), as of ${new Date(D.generated * 1000).toLocaleString("sv-SE")}`,
      D.live ? h("span", { id: "live" }, "; updates automatically") : "");
  }
  function drawAll() { drawStudies(); drawCurves(); drawComparison(); drawPolicyControls(); drawRuns(); }
  function start() { drawHeader(); drawFilters(); drawCurveControls(); drawAll(); }

  async function follow() {
    try {
      const answer = await fetch(`data.json?version=${D.version}`);
      if (answer.status === 200) { D = await answer.json(); start(); }
      else if ($("live")) $("live").textContent = answer.ok ? "; updates automatically" : "; the server has a problem";
    } catch { if ($("live")) $("live").textContent = "; the server has stopped"; }
    setTimeout(follow, 2000);
  }

  const repaint = () => { redraw(); for (const c of profiles.keys()) drawProfile(c); for (const d of dimensions) drawDimension(d); };
  let waiting = 0;
  window.addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(repaint); });
  dark.addEventListener("change", drawAll);
  start();
  if (D.live) setTimeout(follow, 2000);
})();
