// The settings: a form made from the schema. What a change would mean is shown before it is applied.
(() => {
  const K = window.kvchat;
  let body, list, found;
  let fields = new Map(); // name -> {field, control, element, mistake, source, group}
  const resets = new Set(); // names that go back to what is below the person's own

  K.panel.tab("settings", 90, (element) => {
    body = element;
  });
  K.panel.onShow("settings", () => load());

  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const changes = () => {
    const changed = new Map();
    for (const [name, one] of fields) {
      const value = one.control.read();
      if (!same(value, one.field.value)) changed.set(name, value);
    }
    return changed;
  };
  const touched = () => new Set([...changes().keys(), ...resets]);

  // Shows what holds now, unless something was changed here meanwhile
  const load = async (evenIfChanged = false) => {
    const answer = await K.call("settings");
    if (!evenIfChanged && touched().size) return;
    if (!answer.groups) {
      body.replaceChildren(K.el("p", { class: "kv-hint", text: answer.error?.message ?? "" }));
      return;
    }
    found = answer;
    const top = body.scrollTop;
    resets.clear();
    fields = new Map();
    list = K.el("div", { class: "kv-groups" }, ...found.groups.map(group));
    body.replaceChildren(head(), banner(), presets(), list, none, footer());
    filter();
    draw();
    body.scrollTop = top;
  };
  const group = (about) => K.el("fieldset", { class: "kv-group" }, K.el("legend", { text: about.title }), ...about.fields.map(row));
  const row = (field) => {
    const id = `kv-set-${field.name}`;
    field.capacity = found.capacities[field.within] ?? null;
    const control = K.field(field, id, () => {
      resets.delete(field.name);
      draw();
    });
    const mistake = K.el("div", { class: "kv-mistake", role: "alert", hidden: true });
    const inline = field.kind === "bool";
    const grouped = ["choice", "list", "formats"].includes(field.kind);
    const label = K.el(grouped ? "span" : "label", { for: grouped ? null : id, class: "kv-label" }, K.el("span", { text: field.label }));
    if (field.applies === "reload") label.append(K.el("span", { class: "kv-badge", text: K.say("ui.settings.reload") }));
    if (field.unit) label.append(K.el("span", { class: "kv-unit", text: field.unit }));
    const source = K.el("span", { class: "kv-source" });
    const element = K.el("div", { class: `kv-field${inline ? " kv-inline" : ""}`, "data-name": field.name }, label, control.element, K.el("div", { class: "kv-help", id: `${id}-help`, text: field.help + range(field) }), source, mistake);
    fields.set(field.name, { field, control, element, mistake, source });
    return element;
  };
  const range = (field) => {
    if (field.least === null || field.most === null || field.kind === "size") return "";
    if (typeof field.most === "number" && field.most > 1e9) return "";
    return " " + K.say("ui.settings.range", { least: field.least, most: field.most });
  };
  // Whose value holds, and the way back
  const drawSource = ({ field, source, control }) => {
    const own = ["file", "model", "flag"].includes(field.source);
    const isBelow = same(control.read(), field.below);
    const going = resets.has(field.name);
    K.show(source, field.source !== "schema" || going || !isBelow);
    const words = going ? K.say("ui.source.going") : K.say(`ui.source.${field.source}`, { model: found.model });
    const back = (own || !isBelow) && !going;
    const button = back && K.el("button", { type: "button", class: "kv-link", text: K.say("ui.settings.reset"), "aria-label": K.say("ui.settings.reset.of", { label: field.label }), on: { click: () => reset([field.name]) } });
    source.replaceChildren(K.el("span", { text: words }), ...(back ? [button] : []));
  };
  const reset = (names) => {
    for (const name of names) {
      const one = fields.get(name);
      if (!one) continue;
      one.control.write(one.field.below);
      if (["file", "model", "flag"].includes(one.field.source)) resets.add(name);
    }
    draw();
  };

  // Search, and settings as a file
  const none = K.el("p", { class: "kv-hint", role: "status", hidden: true });
  let wanted = "";
  const head = () => {
    const search = K.el("input", { type: "search", class: "kv-input kv-find", placeholder: K.say("ui.settings.find"), "aria-label": K.say("ui.settings.find"), autocomplete: "off" });
    search.value = wanted;
    search.addEventListener("input", () => {
      wanted = search.value;
      filter();
    });
    const file = K.el("input", { type: "file", accept: ".toml", hidden: true, on: { change: () => bringIn(file) } });
    const say = (code, press, about = {}) => K.el("button", { type: "button", class: "kv-link", text: K.say(code), ...about, on: { click: press } });
    return K.el("div", { class: "kv-set-head" }, search, K.el("div", { class: "kv-set-file" },
      say("ui.settings.import", () => file.click()), say("ui.settings.export", takeOut),
      say("ui.settings.reset_all", () => reset([...fields.keys()].filter((name) => !fields.get(name).field.of_all))), file));
  };
  const filter = () => {
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { field, element } of fields.values()) {
      const text = `${field.label} ${field.help} ${field.name}`.toLowerCase();
      K.show(element, words.every((word) => text.includes(word)));
    }
    for (const one of list.children) K.show(one, [...one.querySelectorAll(".kv-field")].some((field) => !field.hidden));
    const empty = [...fields.values()].every(({ element }) => element.hidden);
    K.put(none, K.say("ui.settings.not_found"));
    K.show(none, empty);
  };
  const bringIn = async (file) => {
    const [chosen] = file.files;
    file.value = "";
    if (!chosen) return;
    const answer = chosen.size > 2 ** 20 ? { error: { message: K.say("ui.settings.too_large"), remedy: "" } } : await K.call("import_settings", { name: chosen.name, text: await chosen.text() });
    if (answer.error) return tell(`${answer.error.message} ${answer.error.remedy}`, true);
    fill(answer.values);
    tell(K.say("ui.settings.imported", { name: chosen.name, count: Object.keys(answer.values).length }));
  };
  const takeOut = async () => {
    const { name, text, error } = await K.call("export_settings");
    if (error) return tell(`${error.message} ${error.remedy}`, true);
    const link = K.el("a", { href: URL.createObjectURL(new Blob([text], { type: "application/toml" })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const fill = (values) => {
    for (const [name, value] of Object.entries(values)) {
      resets.delete(name);
      fields.get(name)?.control.write(value);
    }
    draw();
  };

  // What holds only once the model is loaded again, with the way to do it here
  const banner = () => {
    const box = K.el("div", { class: "kv-pending", hidden: !found.pending.length }, K.el("p", { text: K.say("ui.settings.pending", { names: found.pending.join(", ") }) }));
    const button = K.el("button", { type: "button", class: "kv-primary", text: K.say("ui.settings.reload_now"), on: { click: () => reload(button) } });
    box.append(button, K.loadProgress());
    return box;
  };
  const reload = async (button) => {
    button.disabled = true;
    const answer = await K.call("reload_model");
    button.disabled = false;
    if (answer.error) tell(`${answer.error.message} ${answer.error.remedy}`, true);
  };
  K.on("status", () => {
    if (body && K.panel.isOpen("settings")) load();
  });

  // Presets: a press fills the form in, and says what it changes
  const shown = (value) => (Array.isArray(value) ? value.join(", ") : value === true ? K.say("ui.on") : value === false ? K.say("ui.off") : value === "auto" ? K.say("ui.auto") : String(value));
  const worded = (field, value) => field.choices?.find((one) => one.value === value)?.label ?? shown(value);
  let unlight; // no preset is what the form shows any more
  const presets = () => {
    const about = K.el("div", { class: "kv-help kv-preset-about", role: "status" });
    const buttons = found.presets.map((one) => {
      const button = K.el("button", { type: "button", class: "kv-preset", "data-preset": one.value, "aria-pressed": "false", text: one.label, title: one.about });
      const differing = () => Object.entries(one.values).filter(([name, value]) => fields.has(name) && !same(value, fields.get(name).field.value));
      button.addEventListener("click", () => {
        const parts = differing().map(([name, value]) => `${fields.get(name).field.label} ${worded(fields.get(name).field, fields.get(name).field.value)} → ${worded(fields.get(name).field, value)}`);
        fill(one.values);
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
        about.replaceChildren(K.el("span", { text: one.about }), K.el("span", { class: "kv-preset-changes", text: parts.length ? K.say("ui.settings.preset.changes", { changes: parts.join(" · ") }) : K.say("ui.settings.preset.same") }));
      });
      return button;
    });
    unlight = () => {
      for (const button of buttons) button.setAttribute("aria-pressed", "false");
      about.replaceChildren(K.say("ui.settings.preset.help"));
    };
    unlight();
    return K.el("div", { class: "kv-presets" }, K.el("div", { class: "kv-label", id: "kv-presets-label", text: K.say("ui.settings.preset") }), K.el("div", { class: "kv-preset-row", role: "group", "aria-labelledby": "kv-presets-label" }, ...buttons), about);
  };

  // The foot: what it would mean, for which models, and doing it
  let said, apply, undo, scope, onlyModel, outlook;
  const footer = () => {
    said = K.el("p", { class: "kv-said", role: "status" });
    undo = K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.settings.undo"), on: { click: revert } });
    apply = K.el("button", { type: "button", class: "kv-primary", text: K.say("ui.settings.apply"), on: { click: send } });
    onlyModel = K.el("input", { type: "checkbox", class: "kv-switch", role: "switch", id: "kv-only-model" });
    scope = K.el("label", { class: "kv-scope", for: "kv-only-model" }, onlyModel, K.el("span", { text: K.say("ui.settings.only_model", { model: found.model }) }));
    outlook = K.outlook(() => tell(""));
    const bar = K.el("div", { class: "kv-apply" }, outlook.element, said, K.el("div", { class: "kv-apply-row" }, scope, undo, apply));
    // what has the focus is not left behind the bar
    new ResizeObserver(() => bar.parentElement?.style.setProperty("scroll-padding-bottom", `${bar.offsetHeight + 12}px`)).observe(bar);
    return bar;
  };
  const tell = (text, wrong = false) => {
    K.put(said, text);
    said.classList.toggle("kv-wrong", wrong);
  };
  let isWrong = false; // a mistake stands: nothing is applied before it is put right
  const draw = () => {
    const changed = changes();
    const count = touched().size;
    undo.disabled = count === 0;
    apply.disabled = count === 0 || isWrong;
    K.show(scope, count > 0);
    for (const [name, one] of fields) {
      one.element.classList.toggle("kv-changed", changed.has(name) || resets.has(name));
      drawSource(one);
    }
    if (count) tell("");
    else unlight();
    outlook.ask(Object.fromEntries(changed), (mistakes) => mark(mistakes));
  };
  const mark = (mistakes) => {
    isWrong = Object.keys(mistakes ?? {}).length > 0;
    apply.disabled = touched().size === 0 || isWrong;
    for (const [name, one] of fields) {
      const wrong = mistakes?.[name];
      K.show(one.mistake, Boolean(wrong));
      if (wrong) K.put(one.mistake, `${wrong.message} ${wrong.remedy}`);
      document.getElementById(`kv-set-${name}`)?.setAttribute("aria-invalid", String(Boolean(wrong)));
    }
  };
  const revert = () => {
    resets.clear();
    for (const one of fields.values()) one.control.write(one.field.value);
    mark({});
    tell("");
    draw();
  };
  const send = async () => {
    const changed = Object.fromEntries(changes());
    const effects = new Set(Object.keys(changed).concat([...resets]).map((name) => fields.get(name).field.applies));
    const answer = await K.call("apply", { changes: changed, resets: [...resets], only_model: onlyModel.checked });
    mark(answer.mistakes);
    if (answer.mistakes) {
      fields.get(Object.keys(answer.mistakes)[0])?.element.scrollIntoView({ block: "center", behavior: "smooth" });
      return;
    }
    if (answer.error) return tell(`${answer.error.message} ${answer.error.remedy}`, true);
    K.refreshChats(); // less of them may be in memory now
    await load(true);
    const parts = ["now", "next answer", "new chat"].filter((one) => effects.has(one)).map(K.effect);
    if (answer.reload.length) parts.push(K.say("ui.effect.reload"));
    tell(K.say("ui.settings.done", { when: parts.join(", ") }));
  };
  // More is known of formats: what was changed here meanwhile stays
  K.on("verdicts", async () => {
    if (!touched().size) return load();
    const answer = await K.call("settings");
    for (const field of (answer.groups ?? []).flatMap((group) => group.fields)) fields.get(field.name)?.control.learn?.(field.choices);
  });
})();
