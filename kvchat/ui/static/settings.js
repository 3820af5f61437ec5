// The settings: a form made from the schema. Nothing takes effect before it is applied.
(() => {
  const K = window.kvchat;
  let body;
  let fields = new Map(); // name -> {field, control, row, mistake}

  K.panel.tab("settings", 90, (element) => {
    body = element;
  });
  K.on("panel", (tab) => {
    if (tab === "settings") load();
  });

  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const changes = () => {
    const found = new Map();
    for (const [name, one] of fields) {
      const value = one.control.read();
      if (!same(value, one.field.value)) found.set(name, value);
    }
    return found;
  };
  // Shows what holds now, unless something was changed here meanwhile
  const load = async () => {
    const found = await K.call("settings");
    if (changes().size) return;
    if (!found.groups) {
      body.replaceChildren(K.el("p", { class: "kv-hint", text: found.error?.message ?? "" }));
      return;
    }
    fields = new Map();
    const groups = found.groups.map((group) =>
      K.el("fieldset", { class: "kv-group" }, K.el("legend", { text: group.title }), ...group.fields.map(row)));
    body.replaceChildren(presets(found.presets), ...groups, footer());
    draw();
  };
  const row = (field) => {
    const id = `kv-set-${field.name}`;
    const control = K.field(field, id, draw);
    const mistake = K.el("div", { class: "kv-mistake", role: "alert", hidden: true });
    const inline = field.kind === "bool";
    const label = K.el(["choice", "list"].includes(field.kind) ? "span" : "label", { for: ["choice", "list"].includes(field.kind) ? null : id, class: "kv-label" }, K.el("span", { text: field.label }));
    if (field.reload) label.append(K.el("span", { class: "kv-badge", text: K.say("ui.settings.reload") }));
    if (field.unit) label.append(K.el("span", { class: "kv-unit", text: field.unit }));
    const element = K.el("div", { class: `kv-field${inline ? " kv-inline" : ""}`, "data-name": field.name }, label, control.element, K.el("div", { class: "kv-help", id: `${id}-help`, text: field.help + range(field) }), mistake);
    fields.set(field.name, { field, control, element, mistake });
    return element;
  };
  const range = (field) => {
    if (field.least === null || field.most === null || field.kind === "size") return "";
    if (typeof field.most === "number" && field.most > 1e9) return "";
    return " " + K.say("ui.settings.range", { least: field.least, most: field.most });
  };
  const presets = (list) => {
    const choose = K.el("select", { class: "kv-input", id: "kv-preset" }, K.el("option", { value: "", text: K.say("ui.settings.preset.choose") }), ...list.map((one) => K.el("option", { value: one.value, text: one.label })));
    choose.addEventListener("change", async () => {
      const found = choose.value ? await K.call("preset", { name: choose.value }) : {};
      for (const [name, value] of Object.entries(found.values ?? {})) fields.get(name)?.control.write(value);
      draw();
    });
    return K.el("div", { class: "kv-field" }, K.el("label", { class: "kv-label", for: "kv-preset", text: K.say("ui.settings.preset") }), choose, K.el("div", { class: "kv-help", text: K.say("ui.settings.preset.help") }));
  };
  let said, apply, undo;
  const footer = () => {
    said = K.el("span", { class: "kv-said", role: "status" });
    undo = K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.settings.undo"), on: { click: revert } });
    apply = K.el("button", { type: "button", class: "kv-primary", text: K.say("ui.settings.apply"), on: { click: send } });
    return K.el("div", { class: "kv-apply" }, said, undo, apply);
  };
  const draw = () => {
    const changed = changes();
    apply.disabled = undo.disabled = changed.size === 0;
    for (const [name, one] of fields) one.element.classList.toggle("kv-changed", changed.has(name));
    if (changed.size) {
      const later = [...changed.keys()].some((name) => fields.get(name).field.reload);
      K.put(said, K.say("ui.settings.changed", { count: changed.size }) + (later ? " " + K.say("ui.settings.some_reload") : ""));
    } else if (said.dataset.kept !== "true") K.put(said, "");
    if (changed.size) said.dataset.kept = "false";
  };
  const revert = () => {
    for (const one of fields.values()) {
      one.control.write(one.field.value);
      K.show(one.mistake, false);
    }
    draw();
  };
  const send = async () => {
    const changed = changes();
    const found = await K.call("apply", { changes: Object.fromEntries(changed) });
    for (const [name, one] of fields) {
      const wrong = found.mistakes?.[name];
      K.show(one.mistake, Boolean(wrong));
      if (wrong) K.put(one.mistake, `${wrong.message} ${wrong.remedy}`);
    }
    if (found.mistakes) {
      fields.get(Object.keys(found.mistakes)[0])?.element.scrollIntoView({ block: "center", behavior: "smooth" });
      return;
    }
    if (found.error) {
      K.put(said, `${found.error.message} ${found.error.remedy}`);
      return;
    }
    for (const [name, value] of changed) fields.get(name).field.value = value;
    if (found.redraw) await load();
    said.dataset.kept = "true";
    K.put(said, found.reload?.length ? K.say("ui.settings.done_reload", { names: found.reload.join(", ") }) : K.say("ui.settings.done"));
    draw();
  };
})();
