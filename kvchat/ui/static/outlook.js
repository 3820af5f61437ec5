// What a change of settings would mean, asked from Python while it is made: how much fits, what is the
// limit, what it costs in answers, and when it takes effect. Nothing is computed here.
(() => {
  const K = window.kvchat;
  const WAIT_MS = 60; // after the last movement; the way to Python and back takes about as long
  const ITEMS = ["weights", "kv_device", "workspace", "activations"];

  K.effect = (time) => {
    const name = time.replace(" ", "_");
    return K.say(`ui.effect.${name}`);
  };
  // How long a text fits, in the words of `plan`: as it is stored at first, and the most.
  K.fitsSaid = (fits) => {
    const { tokens, most_tokens: most, stored, pair, helps } = fits;
    const said = K.say(stored ? "fits.stored" : "fits.as_computed", { tokens, format: K.format(stored ?? "") });
    if (most <= tokens) return said;
    const how = [...(pair ? ["requantize"] : []), ...helps].map((one) => K.say(`fits.how.${one}`, { format: K.format(pair ?? "") }));
    return K.say("fits.more", { fits: said, most, how: how.join(K.say("fits.and")) });
  };
  K.outlook = (changed) => {
    const most = K.el("strong", { class: "kv-outlook-most" });
    const gain = K.el("span", { class: "kv-gain" });
    const now = K.el("span", { class: "kv-muted" });
    const fits = K.el("div", { class: "kv-outlook-line" });
    const reach = K.el("div", { class: "kv-outlook-line" });
    const limit = K.el("div", { class: "kv-outlook-line" });
    const chat = K.el("div", { class: "kv-outlook-line kv-outlook-chat" });
    const when = K.el("div", { class: "kv-outlook-line kv-muted" });
    const costs = K.el("div", { class: "kv-outlook-costs" });
    const bar = K.el("div", { class: "kv-outlook-bar", role: "img" });
    const element = K.el("section", { class: "kv-outlook", "aria-label": K.say("ui.outlook"), "aria-live": "polite" },
      K.el("div", { class: "kv-outlook-head" }, most, gain, now), bar, fits, reach, limit, chat, costs, when);

    let timer = 0;
    let asked = 0;
    let waiting = null; // what is to be asked once the answer under way is here
    let busy = false;
    const ask = (changes, wrong) => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        waiting = { changes, wrong };
        if (!busy) next();
      }, asked++ ? WAIT_MS : 0);
    };
    const next = async () => {
      const { changes, wrong } = waiting;
      waiting = null;
      busy = true;
      const began = performance.now();
      const found = await K.call("foretell", { changes, chat: K.chat ?? "" });
      element.dataset.ms = Math.round(performance.now() - began);
      busy = false;
      if (waiting) return next();
      if (found.error) {
        wrong({});
        return say(found.error);
      }
      wrong(found.mistakes);
      draw(found, Object.keys(changes).length > 0);
    };
    const say = (problem) => {
      K.put(most, problem.message);
      for (const one of [gain, now, fits, reach, limit, chat, when]) K.put(one, "");
      bar.replaceChildren();
    };
    const draw = (found, isChanged) => {
      drawCosts(found.fidelity, found.effects);
      K.put(when, isChanged && Object.keys(found.effects).length ? effects(found.effects) : "");
      if (found.problem) return say({ message: `${found.problem.message} ${found.problem.remedy}` });
      const { now: before, then } = found;
      const short = then.short_by_bytes > 0;
      element.classList.toggle("kv-short", short);
      K.put(most, short ? K.say("ui.outlook.short", { size: K.size(then.short_by_bytes) }) : K.say("ui.outlook.fits", { tokens: then.tokens }));
      const more = then.tokens - before.tokens;
      K.put(gain, more ? `${more > 0 ? "+" : "−"}${K.number(Math.abs(more))}` : "");
      gain.classList.toggle("kv-less", more < 0);
      K.put(now, more ? K.say("ui.outlook.now", { tokens: before.tokens }) : "");
      K.put(fits, short ? "" : K.fitsSaid(then.fits));
      const bytes = { bytes: K.size(then.token_bytes), least: K.size(then.least_token_bytes) };
      const parts = [K.say("ui.outlook.letters", { letters: then.letters }), K.say(then.page_tokens ? "ui.outlook.pages.own" : "ui.outlook.pages", { pages: then.pages, tokens: then.page_tokens, letters: then.page_letters })];
      const a_token = then.least_token_bytes < then.token_bytes ? "ui.outlook.token_least" : "ui.outlook.token";
      K.put(reach, short ? "" : [...parts, K.say(a_token, bytes)].join(" · "));
      K.put(limit, K.say(`ui.outlook.limit.${then.binding}`, { size: K.size(then.allowed_bytes) }));
      K.put(chat, found.chat ? ofChat(found.chat) : "");
      drawBar(then);
    };
    const ofChat = ({ problem, turns, turns_now: now, tokens, cost }) => {
      if (problem) return K.say("ui.outlook.chat.refused", { why: `${problem.message} ${problem.remedy}` });
      const left = K.say("ui.outlook.chat", { turns: K.say("ui.outlook.chat.turns", { turns }), now, tokens: K.say("ui.figures.tokens", { tokens }) });
      const s = cost.s === null ? "" : ` (${K.say("ui.about", { s: K.seconds(cost.s) })})`;
      return `${left} ${K.say("ui.outlook.chat.read", { tokens: cost.tokens })}${s}`;
    };
    const drawBar = ({ footprint, allowed_bytes: allowed }) => {
      const whole = Math.max(allowed, footprint.total, 1);
      const parts = ITEMS.filter((name) => footprint[name] > 0);
      bar.setAttribute("aria-label", parts.map((name) => `${K.say(`ui.item.${name}`)} ${K.size(footprint[name])}`).join(", "));
      while (bar.children.length > parts.length) bar.lastChild.remove();
      while (bar.children.length < parts.length) bar.append(K.el("i"));
      parts.forEach((name, at) => {
        bar.children[at].className = `kv-i-${name}`;
        bar.children[at].style.width = `${(footprint[name] / whole) * 100}%`;
        bar.children[at].title = `${K.say(`ui.item.${name}`)} · ${K.size(footprint[name])}`;
      });
    };
    const effects = (found) => {
      const times = Object.values(found);
      const parts = ["now", "next answer", "new chat", "reload"].filter((one) => times.includes(one)).map((one) => {
        const count = times.filter((time) => time === one).length;
        const words = K.effect(one);
        return times.length > count ? `${words} (${count})` : words;
      });
      return K.say("ui.settings.changed", { count: times.length, when: parts.join(" · ") });
    };

    // What the formats cost this model: as it was measured, or the button to measure it
    let kept = "";
    const drawCosts = (rows, effects) => {
      const formats = K.frame?.formats ?? {};
      const wanted = rows.filter((row) => !row.known || "seal_format" in effects || "floor_format" in effects);
      const state = JSON.stringify([wanted, formats.stage, formats.pairs, formats.done]);
      if (state === kept) return;
      kept = state;
      costs.replaceChildren(...wanted.map((row) => cost(row, formats)));
    };
    const cost = (row, formats) => {
      const line = K.el("div", { class: `kv-cost${row.closed ? " kv-failed" : ""}` }, K.el("b", { text: K.format(row.pair) }), K.el("span", { text: row.note }));
      const waits = formats.pairs?.includes(row.pair);
      if (waits && formats.stage !== "given_up") {
        const share = formats.of ? Math.round((100 * formats.done) / formats.of) : 0;
        line.append(K.el("span", { class: "kv-cost-done", text: formats.stage === "measuring" ? K.say("ui.measure.done", { share }) : K.say("ui.measure.waits") }), press("ui.measure.cancel", { cancel: true, pair: row.pair }));
      } else if (!row.known) line.append(press("ui.measure", { pair: row.pair }));
      return line;
    };
    const press = (code, sent) => K.el("button", { type: "button", class: "kv-link", text: K.say(code), on: { click: async (event) => {
      event.currentTarget.disabled = true;
      const answer = await K.call("measure", sent);
      if (answer.error) changed(answer.error);
    } } });
    K.outlook.again = () => {
      if (waiting === null && !busy && element.isConnected) again();
    };
    K.outlook.anew = () => {
      if (element.isConnected) again();
    };
    const again = () => lastAsked && ask(lastAsked.changes, lastAsked.wrong);
    let lastAsked = null;
    return { element, ask: (changes, wrong) => ask(...Object.values((lastAsked = { changes, wrong }))) };
  };

  // Pages are told by the documents of the chat that is open
  K.on("chat", () => K.panel.isOpen("settings") && K.outlook.anew?.());

  // What is known of formats changes while they are measured; memory moves as well
  let known = "";
  let seen = 0;
  let last = 0;
  K.on("frame", (frame) => {
    if (!K.panel.isOpen("settings") || !K.outlook.again) return;
    const state = JSON.stringify(frame.formats);
    const ended = known && (JSON.parse(known)?.found ?? 0) !== (frame.formats?.found ?? 0);
    if (ended) K.emit("verdicts");
    const capacity = frame.kv?.capacity_tokens;
    const is_due = performance.now() - last > 1000;
    if (state !== known || (capacity !== seen && is_due)) {
      K.outlook.again();
      last = performance.now();
      seen = capacity;
    }
    known = state;
  });
})();
