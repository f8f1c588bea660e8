"use strict";
// The player of replays: draws canvases, survival curves, tables of costs, and the controls. Text of a model is
// inserted as textContent only.
const Lastword = (() => {
  const make = (name, set = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(set)) {
      if (key === "class") element.className = value;
      else if (key === "text") element.textContent = value;
      else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (value !== null && value !== false) element.setAttribute(key, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  };
  const draw = (name, set = {}) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(set)) element.setAttribute(key, value);
    return element;
  };
  const count = (number) => Number(number).toLocaleString("en-GB");
  const known = (value) => value !== null && value !== undefined;

  // ---- frames: {forward_passes, tokens_computed, end, slots: [[text or null, pass, confidence]]} ----

  const fromServer = (frame) => {
    const texts = frame.texts || [];
    const tokens = frame.tokens || texts;  // in both, null is a mask
    let end = frame.end;
    if (end === undefined) {
      const first = texts.findIndex((text, slot) => text === "" && known(tokens[slot]));
      end = first < 0 ? null : first;
    }
    const of = (list, slot) => (list && known(list[slot]) ? list[slot] : null);
    return {
      forward_passes: frame.forward_passes || 0, tokens_computed: frame.tokens_computed || 0, end, text: frame.text,
      slots: texts.map((text, slot) => [
        known(tokens[slot]) ? text : null, of(frame.filled_at, slot), of(frame.confidence, slot),
      ]),
    };
  };
  const sameSlot = (one, other) =>
    one && other && one[0] === other[0] && one[1] === other[1] && one[2] === other[2];
  const packed = (frames) => {
    let before = [];
    return frames.map((frame) => {
      const set = [];
      frame.slots.forEach((slot, at) => {
        if (!sameSlot(before[at], slot)) set.push([at, ...slot]);
      });
      before = frame.slots;
      return { forward_passes: frame.forward_passes, tokens_computed: frame.tokens_computed, slots: frame.slots.length, end: frame.end, set };
    });
  };
  const unpacked = (frames) => {
    let slots = [];
    return frames.map((frame) => {
      slots = slots.slice(0, frame.slots);
      for (const [at, ...slot] of frame.set) slots[at] = slot;
      return { forward_passes: frame.forward_passes, tokens_computed: frame.tokens_computed, end: frame.end, slots };
    });
  };

  // ---- a canvas ----

  const SURENESS = [0.5, 0.7, 0.85, 0.95];
  const SURE_NAMES = ["below 0.5", "0.5", "0.7", "0.85", "0.95 and more"];
  const SHADES = 6;
  const sureness = (confidence) =>
    known(confidence) ? "s" + SURENESS.filter((bound) => confidence >= bound).length : "";
  const shade = (pass, passes) =>
    known(pass) ? "p" + Math.max(0, Math.min(SHADES - 1, Math.floor(((pass - 1) * SHADES) / Math.max(1, passes)))) : "";
  const shown = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g, "\u25a1");

  class Canvas {
    constructor(label) {
      this.tokens = [];
      this.frame = null;
      this.passes = 1;
      this.told = make("div", { class: "told", "aria-live": "polite", text: "Point at a slot, or walk through them with the arrow keys." });
      this.element = make("div", { class: "canvas", role: "group", "aria-label": label, dir: "auto" });
      this.element.addEventListener("pointerover", (event) => this.tell(event.target));
      this.element.addEventListener("click", (event) => this.focus(this.tokens.indexOf(event.target)));
      this.element.addEventListener("focusin", (event) => this.tell(event.target));
      this.element.addEventListener("keydown", (event) => this.move(event));
    }
    draw(frame, passes) {
      const old = this.frame, rescaled = passes !== this.passes;
      this.frame = frame;
      this.passes = passes;
      while (this.tokens.length > frame.slots.length) this.tokens.pop().remove();
      frame.slots.forEach((slot, at) => {
        if (!this.tokens[at]) {
          const token = make("span", { tabindex: at ? -1 : 0 });
          this.tokens.push(token);
          this.element.append(token);
        } else if (
          old && !rescaled && old.end === frame.end && sameSlot(old.slots[at], slot) &&
          slot[1] !== frame.forward_passes && slot[1] !== old.forward_passes
        ) return;
        this.fill(this.tokens[at], slot, at);
      });
    }
    fill(token, [text, pass, confidence], at) {
      const end = this.frame.end, isEnd = end === at, after = known(end) && at > end;
      const classes = ["token"];
      if (text === null) classes.push("mask");
      else if (isEnd) classes.push("end");
      else classes.push(sureness(confidence), shade(pass, this.passes));
      if (after) classes.push("after");
      if (text !== null && pass && pass === this.frame.forward_passes) classes.push("fresh");
      const label = text === null ? "" : isEnd ? "end" : text === "" ? (after ? "\u00b7" : "") : shown(text);
      token.className = classes.filter(Boolean).join(" ");
      if (token.textContent !== label) token.textContent = label;
      if (known(pass) && text !== null) token.dataset.pass = pass;
      else delete token.dataset.pass;
    }
    tell(token) {
      const at = this.tokens.indexOf(token);
      if (at >= 0) this.told.textContent = this.sentence(at);
    }
    sentence(at) {
      const [text, pass, confidence] = this.frame.slots[at];
      const parts = [`slot ${at + 1} of ${this.frame.slots.length}`];
      if (text === null) parts.push("still a mask");
      else parts.push(this.frame.end === at ? "the end" : text === "" ? "no text of its own" : JSON.stringify(shown(text)));
      if (known(pass)) parts.push(pass ? `filled in pass ${pass}` : "given before the first pass");
      if (known(confidence)) parts.push(`confidence ${confidence.toFixed(2)}`);
      if (known(this.frame.end) && at > this.frame.end) parts.push("behind the end: not part of the answer");
      return parts.join(" \u00b7 ");
    }
    focus(at) {
      if (!this.tokens[at]) return;
      for (const token of this.tokens) if (token.tabIndex === 0) token.tabIndex = -1;
      this.tokens[at].tabIndex = 0;
      this.tokens[at].focus();
    }
    move(event) {
      const at = this.tokens.indexOf(event.target), last = this.tokens.length - 1;
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
      if (at < 0 || to === undefined) return;
      event.preventDefault();
      this.focus(Math.max(0, Math.min(last, to)));
    }
  }

  // ---- the survival curve ----

  const quantile = (survival, q) => {
    const at = survival.findIndex((value, slot) => slot > 0 && value <= 1 - q + 1e-9);
    return at < 0 ? survival.length - 1 : at;
  };
  const lengthsOf = (said) => {
    const survival = said && (said.survival || said.curve);
    if (!Array.isArray(survival) || survival.length < 2) return null;
    const mean = known(said.mean) ? said.mean : survival.slice(0, -1).reduce((sum, value) => sum + value, 0);
    return {
      mean, median: quantile(survival, 0.5), q90: quantile(survival, 0.9),
      tail: survival[survival.length - 1], survival,
    };
  };
  const MARKS = [
    ["mean", "mean"], ["median", "median"], ["q90", "0.9 quantile"], ["planned", "planned"], ["came", "the end that came"],
  ];
  const curve = (lengths, { horizon = null, end = null, height = 180 } = {}) => {
    const root = make("div", { class: "curve" });
    const at = { mean: lengths.mean, median: lengths.median, q90: lengths.q90, planned: horizon, came: end };
    const all = lengths.survival.length - 1;
    const needed = Math.max(lengths.q90 * 1.35, ...Object.values(at).filter(known).map((value) => value * 1.12), 8);
    const most = Math.min(Math.max(all, horizon || 0, end || 0), Math.ceil(needed));
    const [width, left, right, top, bottom] = [360, 30, 8, 24, 22];
    const x = (slot) => left + ((width - left - right) * slot) / most;
    const y = (value) => top + (height - top - bottom) * (1 - value);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
    const name = draw("title");
    name.textContent = MARKS.filter(([key]) => known(at[key])).map(([key, word]) => `${word} ${Math.round(at[key] * 10) / 10}`)
      .join(", ");
    svg.append(name);
    for (const value of [0, 0.5, 1]) {
      svg.append(draw("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      const label = draw("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" });
      label.textContent = value;
      svg.append(label);
    }
    const step = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000].find((by) => most / by <= 6) || most;
    for (let slot = 0; slot <= most; slot += step) {
      const label = draw("text", { x: x(slot), y: height - 6, "text-anchor": "middle" });
      label.textContent = slot;
      svg.append(label);
    }
    const caption = draw("text", { x: width - right, y: 10, "text-anchor": "end" });
    caption.textContent = "chance that the answer has more tokens";
    svg.append(caption);
    let path = `M${x(0)} ${y(lengths.survival[0])}`;
    const shownTo = Math.min(all, most);
    for (let slot = 1; slot <= shownTo; slot++) path += `H${x(slot).toFixed(1)}V${y(lengths.survival[slot]).toFixed(1)}`;
    svg.append(draw("path", { class: "area", d: `${path}V${y(0)}H${x(0)}Z` }), draw("path", { class: "line", d: path }));
    const legend = make("ul", { class: "marks" });
    for (const [key, word] of MARKS) {
      if (!known(at[key])) continue;
      svg.append(draw("line", { class: `mark ${key}`, x1: x(at[key]), x2: x(at[key]), y1: key === "came" ? top - 4 : top, y2: y(0) }));
      if (key === "came") {
        const place = x(at[key]);
        svg.append(draw("path", { class: "flag", d: `M${place - 5} ${top - 9}h10l-5 8z` }));
      }
      const sample = draw("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" });
      sample.append(draw("line", { class: `mark ${key}`, x1: 1, x2: 25, y1: 6, y2: 6 }));
      const value = key === "mean" ? at[key].toFixed(1) : count(at[key]);
      legend.append(make("li", {}, sample, `${word} `, make("b", { text: value })));
    }
    root.append(svg, legend);
    if (lengths.tail > 0.02) {
      const tail = `${Math.round(lengths.tail * 100)}% of the curve lies beyond slot ${count(all)}.`;
      root.append(make("div", { class: "told", text: tail }));
    }
    return root;
  };

  // ---- the ledger ----

  const ledger = (told) => {
    const list = make("dl", { class: "ledger" });
    const row = (name, value, note) => {
      if (!known(value)) return;
      const number = make("dd", { text: value });
      if (note) number.append(" ", make("small", { text: note }));
      list.append(make("div", {}, make("dt", { text: name }), number));
    };
    const probe = (number) => (number ? `+ ${count(number)} probe` : "");
    row("passes", known(told.forward_passes) ? count(told.forward_passes) : null, probe(told.probe_forward_passes));
    row("columns", known(told.tokens_computed) ? count(told.tokens_computed) : null, probe(told.probe_tokens_computed));
    row("seconds", known(told.seconds) ? told.seconds.toFixed(2) : null);
    row("tokens", known(told.tokens) ? count(told.tokens) : null);
    const forwards = (told.forward_passes || 0) + (told.probe_forward_passes || 0);
    const rate = known(told.tokens_per_forward) ? told.tokens_per_forward : forwards ? (told.tokens || 0) / forwards : null;
    row("tokens a forward", known(rate) ? rate.toFixed(2) : null);
    return list;
  };

  // ---- a player of one run, or of two side by side, where time is the number of computed tokens ----

  const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];
  const FRAMES_A_SECOND = 10;
  let players = 0;

  class Player {
    // runs: those of a replay; or [{title}], to be filled by push() and finish().
    constructor(runs, { mode = "confidence", onmode = null, curves = true, live = false } = {}) {
      this.number = ++players;
      this.curves = curves;
      this.onmode = onmode;
      this.lanes = runs.map((run) => this.lane(run));
      for (const lane of this.lanes.slice(1)) lane.canvas.told.textContent = "";  // one hint is enough
      this.at = 0;
      this.timer = null;
      this.controls = this.makeControls(mode);
      this.legend = make("div", { class: "legend" });
      this.grid = make("div", { class: "lanes" + (runs.length > 1 ? " race" : "") }, ...this.lanes.map((lane) => lane.element));
      const figures = make("div", { class: "lanes" + (runs.length > 1 ? " race" : "") }, ...this.lanes.map((lane) => lane.figures));
      this.element = make("div", { class: "player" }, this.grid, this.controls, this.legend, figures);
      this.setLive(live);
      this.setMode(mode);
      this.measure();
      if (!live) this.lanes.forEach((lane) => this.tell(lane));
      this.show(live ? this.ticks.length - 1 : 0);
    }
    lane(run) {
      const canvas = new Canvas(`canvas: ${run.title || "answer"}`);
      const state = make("span", { class: "lane-state" });
      const head = make("div", { class: "lane-head" }, make("span", { class: "lane-title", text: run.title || "" }), state);
      const costs = make("div", { class: "figures" }), figures = make("div", { class: "figures" });
      const element = make("section", { class: "lane" }, head, canvas.element, costs, canvas.told);
      return { run, canvas, state, costs, figures, element, frames: unpacked(run.frames || []), passes: 1 };
    }
    makeControls(mode) {
      const button = (text, label, act) => make("button", { type: "button", text, "aria-label": label, title: label, onclick: act });
      this.playing = button("\u25b6", "Play", () => (this.timer ? this.pause() : this.play()));
      this.slider = make("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "where in the run" });
      this.slider.addEventListener("input", () => { this.pause(); this.show(Number(this.slider.value)); });
      this.where = make("span", { class: "where" });
      this.speed = make("select", { "aria-label": "speed" }, ...SPEEDS.map((by) =>
        make("option", { value: by, text: `${by}\u00d7`, selected: by === 1 })));
      const choice = (value, word) => make("label", {}, make("input", {
        type: "radio", name: `colour-${this.number}`, value, checked: value === mode,
        onchange: () => { this.setMode(value); if (this.onmode) this.onmode(value); },
      }), word);
      this.switch = make("fieldset", { class: "switch" }, make("legend", { class: "unseen", text: "colour tokens by" }),
        choice("confidence", "confidence"), choice("pass", "pass"));
      return make("div", { class: "controls" }, this.playing,
        button("\u2039", "Step back", () => { this.pause(); this.show(this.at - 1); }),
        button("\u203a", "Step forward", () => { this.pause(); this.show(this.at + 1); }),
        this.slider, this.where, this.speed, this.switch);
    }
    setLive(live) {
      this.live = live;
      for (const control of this.controls.querySelectorAll("button, input[type=range], select")) control.disabled = live;
    }
    setMode(mode) {
      this.mode = mode;
      this.grid.classList.toggle("colour-confidence", mode === "confidence");
      this.grid.classList.toggle("colour-pass", mode === "pass");
      for (const input of this.switch.querySelectorAll("input")) input.checked = input.value === mode;
      this.drawLegend();
    }
    drawLegend() {
      this.legend.className = `legend colour-${this.mode}`;
      const entries = [make("span", { text: this.mode === "confidence" ? "confidence:" : "filled in pass:" })];
      if (this.mode === "confidence") {
        SURE_NAMES.forEach((name, at) => entries.push(make("span", { class: `token s${at}`, text: name })));
      } else {
        const passes = Math.max(1, ...this.lanes.map((lane) => lane.passes));
        const shades = Math.min(SHADES, passes);
        for (let at = 0; at < SHADES; at++) {
          const first = Math.ceil((at * passes) / SHADES) + 1, last = Math.ceil(((at + 1) * passes) / SHADES);
          if (last < first) continue;
          const text = first === last || shades === passes ? String(first) : `${first}\u2013${last}`;
          entries.push(make("span", { class: `token p${at}`, text }));
        }
      }
      entries.push(make("span", {}, make("span", { class: "token mask" }), " mask"));
      this.legend.replaceChildren(...entries);
    }
    measure() {
      for (const lane of this.lanes) lane.passes = Math.max(1, lane.run.passes || 0, ...lane.frames.slice(-1).map((frame) => frame.forward_passes));
      const race = this.lanes.length > 1;
      const clock = (frame) => (race ? frame.tokens_computed : frame.forward_passes);
      this.ticks = [...new Set(this.lanes.flatMap((lane) => lane.frames.map(clock)))].sort((one, other) => one - other);
      if (!this.ticks.length) this.ticks = [0];
      this.clock = clock;
      this.slider.max = this.ticks.length - 1;
    }
    push(index, frame) {
      const lane = this.lanes[index];
      const last = lane.frames[lane.frames.length - 1];
      if (last && frame.forward_passes <= last.forward_passes) lane.frames.pop();
      lane.frames.push(frame);
      if (!this.live || lane.asked) return;
      lane.asked = true;  // frames may arrive faster than the screen is redrawn
      requestAnimationFrame(() => {
        lane.asked = false;
        if (this.live) this.drawLive(lane, lane.frames[lane.frames.length - 1]);
      });
    }
    drawLive(lane, frame) {
      const passes = Math.max(lane.run.horizon || frame.slots.length, frame.forward_passes);
      if (passes !== lane.passes) {
        lane.passes = passes;
        this.drawLegend();
      }
      lane.canvas.draw(frame, lane.passes);
      if (lane.done) return;
      const left = frame.slots.filter((slot) => slot[0] === null).length;
      lane.state.textContent = `pass ${frame.forward_passes} \u00b7 ${count(left)} of ${count(frame.slots.length)} masks left`;
    }
    finish(index, told) {
      const lane = this.lanes[index];
      lane.done = true;
      Object.assign(lane.run, told, { frames: packed(lane.frames) });
      this.tell(lane);
    }
    tell(lane) {
      const run = lane.run;
      const costs = run.ledger ? [ledger(run.ledger)] : [];
      const words = [run.finish, run.ledger && run.ledger.whole ? "Passes and columns include the probe." : null];
      if (words.some(Boolean)) costs.push(make("div", { class: "told", text: words.filter(Boolean).join(" ") }));
      lane.costs.replaceChildren(...costs);
      const drawn = this.curves && run.lengths ? [curve(run.lengths, { horizon: run.horizon, end: run.end })] : [];
      lane.figures.replaceChildren(...drawn);
      lane.state.textContent = `canvas of ${count(run.horizon || (lane.frames.length ? lane.frames[0].slots.length : 0))}`;
    }
    rest() {  // no more frames will come
      this.setLive(false);
      this.measure();
      this.drawLegend();
      this.show(this.ticks.length - 1);
    }
    show(at) {
      this.at = Math.max(0, Math.min(this.ticks.length - 1, at));
      const now = this.ticks[this.at];
      for (const lane of this.lanes) {
        if (!lane.frames.length) continue;
        let low = 0, high = lane.frames.length - 1;
        while (low < high) {
          const middle = (low + high + 1) >> 1;
          if (this.clock(lane.frames[middle]) <= now) low = middle; else high = middle - 1;
        }
        lane.canvas.draw(lane.frames[low], lane.passes);
      }
      this.slider.value = this.at;
      if (this.live) {
        this.where.textContent = "live";
        return;
      }
      const word = this.lanes.length > 1 ? "columns" : "pass", most = this.ticks[this.ticks.length - 1];
      this.where.textContent = `${word} ${count(now)} of ${count(most)}`;
      this.slider.setAttribute("aria-valuetext", this.where.textContent);
    }
    play() {
      if (this.at >= this.ticks.length - 1) this.show(0);
      const next = () => {
        this.show(this.at + 1);
        if (this.at >= this.ticks.length - 1) this.pause();
        else this.timer = setTimeout(next, 1000 / (FRAMES_A_SECOND * Number(this.speed.value)));
      };
      this.timer = setTimeout(next, 1000 / (FRAMES_A_SECOND * Number(this.speed.value)));
      this.setPlaying("\u2016", "Pause");
    }
    pause() {
      clearTimeout(this.timer);
      this.timer = null;
      this.setPlaying("\u25b6", "Play");
    }
    setPlaying(text, label) {
      this.playing.textContent = text;
      this.playing.setAttribute("aria-label", label);
      this.playing.title = label;
    }
  }

  // Return JSON that is safe in a script element.
  const forScript = (data) =>
    JSON.stringify(data).replace(/[<>&\u007f-\uffff]/g, (sign) => "\\u" + sign.charCodeAt(0).toString(16).padStart(4, "0"));

  return { make, count, known, fromServer, packed, unpacked, lengthsOf, curve, ledger, Canvas, Player, forScript };
})();
