// What answers achieved, against what this device was measured to do at best. Reading a prompt computes
// (compute-bound), writing an answer reads all weights and KV for each token (bandwidth-bound).
(() => {
  const K = window.kvchat;
  let known = { stage: "waiting", measured: null };
  const KINDS = [
    { name: "prefill", rate: (made) => made.prefill_flops_per_s, most: (found) => found.flops_per_s, said: (rate) => K.say("ui.speed.flops", { rate: K.number(rate / 1e9, rate < 1e11 ? 1 : 0) }), counts: (made) => made.prompt_tokens - made.reused_tokens > 0 },
    { name: "decode", rate: (made) => made.decode_bytes_per_s, most: (found) => found.bytes_per_s, said: (rate) => K.perSecond(rate), counts: (made) => made.reply_tokens > 1 },
  ];

  K.speed = () => {
    const gauges = KINDS.map((kind) => ({ kind, ...gauge(kind.name) }));
    const note = K.el("p", { class: "kv-hint" });
    const again = K.el("button", { type: "button", class: "kv-link", text: K.say("ui.speed.measure"), on: { click: measure } });
    const box = K.el("figure", { class: "kv-figure" }, K.el("figcaption", {}, K.el("strong", { text: K.say("ui.speed") }), K.el("span", { class: "kv-space" }), again), ...gauges.map((one) => one.box), note);
    const draw = () => {
      if (!K.panel.isOpen("turns")) return;
      const made = answers();
      for (const one of gauges) drawGauge(one, made);
      again.disabled = known.stage === "measuring" || (known.stage === "waiting" && asked);
      K.put(note, said());
    };
    K.on("figures", () => {
      draw();
      if (isLow() && known.stage === "done") ask(); // it is being measured again by itself
    });
    K.on("ceilings", draw);
    K.panel.onShow("turns", ask);
    return box;
  };
  const gauge = (name) => {
    const words = K.el("span", { class: "kv-gauge-words" });
    const best = K.el("i", { class: "kv-gauge-best" });
    const last = K.el("b", { class: "kv-gauge-last" });
    const track = K.el("div", { class: "kv-gauge-track", role: "img" }, best, last);
    const box = K.el("div", { class: "kv-gauge" }, K.el("div", { class: "kv-gauge-name" }, K.el("span", { text: K.say(`ui.speed.${name}`) }), K.el("small", { class: "kv-muted", text: K.say(`ui.speed.${name}.bound`) })), track, words);
    return { box, words, best, last, track };
  };
  const isLow = () => KINDS.some((kind) => known.measured && Math.max(...ratesOf(kind)) > kind.most(known.measured));
  const ratesOf = (kind, made = answers()) => made.filter((one) => kind.counts(one)).map(kind.rate).filter((rate) => rate > 0);
  const answers = () => [...K.turnFigures().values()].map((one) => one.figures).filter(Boolean);
  const drawGauge = ({ kind, words, best, last, track }, made) => {
    const rates = ratesOf(kind, made);
    const newest = rates.at(-1) ?? 0;
    const top = Math.max(0, ...rates);
    const measured = known.measured ? kind.most(known.measured) : 0;
    const most = measured && Math.max(measured, top); // what an answer reached, the device can do
    const share = (rate) => (most ? Math.min(100, (rate / most) * 100) : 0);
    best.style.width = `${share(top).toFixed(1)}%`;
    last.style.left = `${share(newest).toFixed(1)}%`;
    K.show(last, Boolean(newest && most));
    const parts = [];
    if (newest) parts.push(K.say("ui.speed.last", { rate: kind.said(newest) }));
    if (rates.length > 1) parts.push(K.say("ui.speed.best", { rate: kind.said(top) }));
    if (most) parts.push(K.say(most > measured ? "ui.speed.at_least" : "ui.speed.most", { rate: kind.said(most) }));
    if (newest && most) parts.push(K.say("ui.speed.percent", { percent: K.number((newest / most) * 100, 0) }));
    K.put(words, parts.join(" · ") || K.say("ui.speed.none"));
    K.set(track, "aria-label", `${K.say(`ui.speed.${kind.name}`)}: ${words.textContent}`);
  };
  const said = () => {
    const found = known.measured;
    if (known.stage === "measuring") return K.say("ui.speed.measuring");
    if (!found) return K.say(known.stage === "given_up" ? "ui.speed.given_up" : "ui.speed.waiting");
    const on = found.threads ? K.say("ui.speed.threads", { device: found.device, threads: found.threads }) : found.device;
    return K.say("ui.speed.measured", { on, dtype: found.dtype, at: new Date(found.at_s * 1000).toLocaleDateString(K.lang) });
  };

  let asked = false;
  let timer = 0;
  const take = (found) => {
    if (!found || found.stage === undefined) return;
    known = found;
    if (found.stage === "done" || found.stage === "given_up") asked = false;
    K.emit("ceilings", found);
    clearTimeout(timer);
    if (found.stage === "measuring" || found.stage === "waiting") timer = setTimeout(ask, 2000);
  };
  const ask = async () => {
    if (K.panel.isOpen("turns") && !document.hidden) take(await K.call("ceilings"));
  };
  const measure = async () => {
    asked = true;
    take(await K.call("measure_ceilings"));
  };
})();
