// The calculator: any model, text, formats and card. Python computes it, as `plan` does.
(() => {
  const K = window.kvchat;
  const CARDS = [8, 12, 16, 24]; // GiB
  const ITEMS = ["weights", "kv_device", "workspace", "activations"];
  const LONGEST = 20; // of the slider: 2 to the power of
  let model, pasted, context, slide, pair, card, own, weights, dtype, every, out, chart, table, said, counting;
  let known = null;

  const field = (code, control, about = {}) => K.el("div", { class: "kv-field", ...about }, K.el("label", { class: "kv-label", for: control.id ?? null, text: K.say(code) }), control);
  const choose = (id, options, value) => {
    const box = K.el("select", { id, class: "kv-input" }, ...options.map(([key, text]) => K.el("option", { value: key, text })));
    box.value = value;
    box.addEventListener("change", () => ask());
    return box;
  };

  K.panel.tab("whatif", 50, (body) => {
    model = choose("kv-if-model", [], "");
    pasted = K.el("textarea", { id: "kv-if-config", class: "kv-input", rows: "5", spellcheck: "false", placeholder: '{ "model_type": "llama", … }', on: { input: () => ask() } });
    context = K.el("input", { id: "kv-if-context", type: "number", class: "kv-input", min: 1, step: 1, inputmode: "numeric" });
    slide = K.el("input", { type: "range", class: "kv-slider", min: 9, max: LONGEST, step: 0.05, "aria-label": K.say("ui.whatif.context") });
    context.addEventListener("input", () => { follow(); ask(); });
    slide.addEventListener("input", () => {
      context.value = Math.max(1, Math.round(2 ** Number(slide.value) / 64) * 64);
      paint();
      ask();
    });
    pair = choose("kv-if-pair", [["fp", K.say("ui.choice.seal_format.fp")], ...["int8", "int6", "int8/int4", "int6/int4", "int5/int4", "int4", "int2", "fp8"].map((one) => [one, K.format(one)])], "fp");
    weights = choose("kv-if-weights", [["as-is", K.say("ui.choice.weights.as-is")], ["int8", "INT8"]], "as-is");
    dtype = choose("kv-if-dtype", [["", K.say("ui.choice.dtype.auto")], ...["fp32", "bf16", "fp16"].map((one) => [one, one])], "");
    own = K.el("input", { id: "kv-if-own", class: "kv-input", value: "10 GiB", "aria-label": K.say("ui.whatif.card.own"), hidden: true, on: { input: () => ask() } });
    card = choose("kv-if-card", [["0", K.say("ui.whatif.card.here")], ...CARDS.map((gib) => [String(gib), `${gib} GiB`]), ["own", K.say("ui.whatif.card.own")]], "0");
    every = K.el("input", { type: "checkbox", class: "kv-switch", role: "switch", id: "kv-if-every", on: { change: () => ask() } });
    said = K.el("p", { class: "kv-said kv-wrong", role: "alert" });
    out = K.el("div", { class: "kv-if-out", role: "status" });
    counting = K.el("p", { class: "kv-hint", text: K.say("ui.models.counting") });
    chart = K.el("figure", { class: "kv-if-chart" });
    table = K.el("div", { class: "kv-table-wrap", tabindex: "0", role: "region", "aria-label": K.say("ui.whatif.table") });
    body.append(
      field("ui.whatif.model", model), K.el("div", { class: "kv-field kv-if-pasted", hidden: true }, K.el("label", { class: "kv-label", for: "kv-if-config", text: K.say("ui.whatif.config") }), pasted),
      K.el("div", { class: "kv-field" }, K.el("label", { class: "kv-label", for: "kv-if-context" }, K.el("span", { text: K.say("ui.whatif.context") }), K.el("span", { class: "kv-unit", text: K.say("ui.unit.tokens") })), K.el("span", { class: "kv-slide" }, slide, context)),
      K.el("div", { class: "kv-if-row" }, field("ui.whatif.card", card), field("ui.whatif.dtype", dtype), field("ui.whatif.weights", weights), field("ui.whatif.pair", pair)), own,
      said, out, chart, K.el("div", { class: "kv-field kv-inline" }, K.el("label", { class: "kv-label", for: "kv-if-every", text: K.say("ui.whatif.every") }), every), table);
  });
  const paint = () => slide.style.setProperty("--at", `${((slide.value - slide.min) / (slide.max - slide.min)) * 100}%`);
  const follow = () => {
    slide.value = Math.log2(Math.max(1, Number(context.value) || 1));
    paint();
  };

  K.panel.onShow("whatif", async () => {
    if (known) return ask();
    out.replaceChildren(counting); // until the first result
    const { models = [], running, weights: loaded, seal } = await K.call("models");
    known = models;
    const named = models.map((one) => [one.ref ?? one.name, one.name]);
    model.replaceChildren(...[...named, ["", K.say("ui.whatif.pasted")]].map(([key, text]) => K.el("option", { value: key, text })));
    model.value = running ?? named[0]?.[0] ?? "";
    weights.value = loaded; // what runs, as it runs
    if (![...pair.options].some((one) => one.value === seal)) pair.append(K.el("option", { value: seal, text: K.format(seal) }));
    pair.value = seal;
    context.value = Math.min(32768, K.frame?.fits?.tokens || 8192);
    follow();
    ask();
  });

  let timer = 0;
  let busy = false;
  let again = false;
  const ask = () => {
    K.show(own, card.value === "own");
    K.show(pasted.parentElement, model.value === "");
    clearTimeout(timer);
    timer = setTimeout(() => (busy ? (again = true) : send()), 60);
  };
  const bytesOf = () => {
    if (card.value !== "own") return Number(card.value) * 2 ** 30;
    const bytes = K.bytesOf(/[a-z]/i.test(own.value) ? own.value : `${own.value} GiB`);
    return bytes === null ? null : Math.round(bytes);
  };
  const refuse = (code) => {
    counting.remove();
    K.put(said, K.say(code));
  };
  const send = async () => {
    const bytes = bytesOf();
    if (bytes === null || (card.value === "own" && !(bytes > 0 && bytes < 2 ** 50))) return refuse("ui.whatif.card.wrong");
    if (model.value === "" && !pasted.value.trim()) {
      out.replaceChildren();
      chart.replaceChildren();
      table.replaceChildren();
      return K.put(said, "");
    }
    const tokens = Number(context.value);
    if (!(Number.isInteger(tokens) && tokens > 0)) return refuse("ui.whatif.context.wrong");
    busy = true;
    const found = await K.call("whatif", { model: model.value, config: model.value === "" ? pasted.value : "", context: tokens, pair: pair.value, weights: weights.value, dtype: dtype.value, card: bytes, all: every.checked });
    busy = false;
    if (again) {
      again = false;
      return send();
    }
    counting.remove();
    K.put(said, found.error ? `${found.error.message} ${found.error.remedy}` : "");
    if (found.footprint) draw(found);
  };

  const draw = (found) => {
    const { footprint, room } = found;
    const rows = ITEMS.filter((name) => footprint[name]).map((name) => [K.say(`ui.item.${name}`) + (name === "activations" || (name === "weights" && found.weights_from === "config") ? K.say("ui.bar.estimated") : ""), K.size(footprint[name])]);
    const verdict = found.short_by_bytes ? K.say("ui.whatif.short", { size: K.size(found.short_by_bytes), usable: K.size(room.usable_bytes) }) : K.say("ui.whatif.fits", { usable: K.size(room.usable_bytes) });
    const failed = found.failed ? K.say("ui.whatif.failed", { format: K.format(found.pair) }) : "";
    out.replaceChildren(
      K.el("p", { class: "kv-help", text: [K.say("ui.whatif.about", { model: found.model, dtype: found.dtype, most: found.max_positions }), K.roomOf(room)].join(" ") }),
      K.el("dl", { class: "kv-if-items" }, ...rows.flatMap(([name, size]) => [K.el("dt", { text: name }), K.el("dd", { text: size })]), K.el("dt", { class: "kv-sum", text: K.say("ui.item.total") }), K.el("dd", { class: "kv-sum", text: K.size(footprint.total) })),
      K.el("p", { class: `kv-if-verdict ${found.short_by_bytes || failed ? "kv-short" : "kv-fits"}`, text: [verdict, failed].filter(Boolean).join(" ") }),
      found.longest.most_tokens ? K.el("p", { text: K.say("ui.whatif.most", { fits: K.fitsSaid(found.longest) }) }) : "",
      ...(found.context > found.max_positions ? [K.el("p", { class: "kv-warn", text: K.say("ui.whatif.beyond", { most: found.max_positions }) })] : []));
    drawTable(found);
    chart.replaceChildren(K.whatifChart(found, chart.clientWidth), legend(found.chart));
  };
  const drawTable = (found) => {
    const columns = ["pair", "token", "kv", "fits", "most"];
    const cells = (row) => [
      K.format(row.key_format === row.value_format ? row.key_format : `${row.key_format}/${row.value_format}`),
      K.size(row.token_bytes), K.size(row.kv_bytes),
      (row.short_by_bytes ? K.say("ui.whatif.cell.short", { size: K.size(row.short_by_bytes) }) : K.say("ui.whatif.cell.fits")) + (row.failed ? ` · ${K.say("ui.whatif.cell.failed")}` : ""),
      K.number(row.largest_context),
    ];
    table.replaceChildren(K.el("table", { class: "kv-table" },
      K.el("caption", { class: "kv-help", text: K.say("ui.whatif.table") }),
      K.el("thead", {}, K.el("tr", {}, ...columns.map((name) => K.el("th", { scope: "col", text: K.say(`ui.whatif.column.${name}`) })))),
      K.el("tbody", {}, ...found.rows.map((row) => K.el("tr", { class: row.short_by_bytes || row.failed ? "kv-short" : "kv-fits" }, ...cells(row).map((text) => K.el("td", { text })))))));
  };
  const legend = (found) => K.el("figcaption", { class: "kv-if-legend" }, ...found.lines.map((line, at) => K.el("span", {}, K.el("i", { class: `kv-l${at}` }), K.format(line.pair) + (line.failed ? ` (${K.say("ui.whatif.cell.failed")})` : ""))));
})();
