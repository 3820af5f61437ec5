// One control for each kind of setting. A control answers `read()` and shows `write(value)`.
(() => {
  const K = window.kvchat;
  const input = (field, id, about) => K.el("input", { id, class: "kv-input", autocomplete: "off", spellcheck: "false", "aria-describedby": `${id}-help`, ...about });

  const text = (field, id, changed) => {
    const long = field.kind === "text" && String(field.value).length > 20;
    const box = long ? K.el("textarea", { id, class: "kv-input", rows: "2", "aria-describedby": `${id}-help` }) : input(field, id, { type: "text", placeholder: field.optional ? K.say("ui.auto") : null });
    box.addEventListener("input", changed);
    if (!field.optional) return { element: box, read: () => box.value, write: (value) => (box.value = value) };
    // `auto` is what files and flags call it; here an empty field is automatic, and says so
    const read = () => (["", "auto", K.say("ui.auto").toLowerCase()].includes(box.value.trim().toLowerCase()) ? "auto" : box.value);
    return { element: box, read, write: (value) => (box.value = value === "auto" ? "" : value) };
  };
  const number = (field, id, changed) => {
    if (field.optional) return text(field, id, changed);
    const whole = field.kind === "int";
    const box = input(field, id, { type: "number", min: field.least, max: field.most, step: whole ? 1 : "any", inputmode: whole ? "numeric" : "decimal" });
    box.addEventListener("input", changed);
    // empty or unreadable goes to Python as it is written, which says what is wrong with it
    const read = () => (box.value === "" ? "" : Number(box.value));
    return { element: field.kind === "float" && field.most <= 5 ? withSlider(field, box, changed) : box, read, write: (value) => { box.value = value; box.dispatchEvent(new Event("kv-write")); } };
  };
  const withSlider = (field, box, changed) => {
    const slider = K.el("input", { type: "range", class: "kv-slider", min: field.least, max: field.most, step: 0.01, "aria-label": field.label, tabindex: "-1" });
    const paint = () => slider.style.setProperty("--at", `${((slider.value - slider.min) / (slider.max - slider.min)) * 100}%`);
    const follow = () => {
      slider.value = box.value;
      paint();
    };
    box.addEventListener("input", follow);
    box.addEventListener("kv-write", follow);
    slider.addEventListener("input", () => {
      box.value = slider.value;
      paint();
      changed();
    });
    return K.el("span", { class: "kv-slide" }, slider, box);
  };
  // What is known of the chosen one, said below the control
  const noteOf = (field, id) => (field.choices.some((one) => one.note) ? K.el("div", { class: "kv-help", id: `${id}-note`, role: "status" }) : null);
  const tell = (field, note, value) => note && K.put(note, field.choices.find((one) => one.value === value)?.note ?? "");
  const MOST_SEGMENTS = 4; // more of them do not stand side by side in the drawer
  const select = (field, id, changed) => {
    const note = noteOf(field, id);
    const options = field.choices.map((one) => K.el("option", { value: one.value, text: one.closed ? K.say("ui.choice.closed", { label: one.label }) : one.label, title: one.note ?? null, disabled: one.closed ?? false }));
    const box = K.el("select", { id, class: "kv-input", "aria-label": field.label, "aria-describedby": `${id}-help` }, ...options);
    box.addEventListener("change", () => {
      tell(field, note, box.value);
      changed();
    });
    const write = (wanted) => {
      box.value = wanted;
      tell(field, note, wanted);
    };
    return { element: note ? K.el("div", {}, box, note) : box, read: () => box.value, write };
  };
  const choice = (field, id, changed) => {
    if (field.choices.length > MOST_SEGMENTS) return select(field, id, changed);
    let value = field.value;
    const note = noteOf(field, id);
    const buttons = field.choices.map((one) => K.el("button", { type: "button", role: "radio", text: one.label, title: one.note ?? null, disabled: one.closed ?? false, on: { click: () => {
      write(one.value);
      changed();
    } } }));
    const write = (wanted) => {
      value = wanted;
      buttons.forEach((button, at) => {
        const is = field.choices[at].value === wanted;
        button.setAttribute("aria-checked", String(is));
        button.tabIndex = is ? 0 : -1;
      });
      tell(field, note, wanted);
    };
    const row = K.el("div", { id, class: "kv-segments", role: "radiogroup", "aria-label": field.label }, ...buttons);
    row.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const at = field.choices.findIndex((one) => one.value === value);
      let next = (at + step + buttons.length) % buttons.length;
      while (buttons[next].disabled) next = (next + step + buttons.length) % buttons.length;
      buttons[next].click();
      buttons[next].focus();
    });
    return { element: note ? K.el("div", {}, row, note) : row, read: () => value, write };
  };
  const toggle = (field, id, changed) => {
    const box = K.el("input", { id, type: "checkbox", class: "kv-switch", role: "switch", "aria-describedby": `${id}-help` });
    box.addEventListener("change", changed);
    return { element: box, read: () => box.checked, write: (value) => (box.checked = Boolean(value)) };
  };
  // An order: what is used stands first and is numbered, what is not used stands below, unticked.
  const list = (field, id, changed) => {
    let value = [];
    const rows = K.el("ol", { id, class: "kv-order", "aria-label": field.label });
    const write = (wanted) => {
      value = [...wanted];
      draw();
    };
    const set = (next) => {
      write(next);
      changed();
    };
    const draw = () => {
      const rest = field.choices.filter((one) => !value.includes(one.value)).map((one) => one.value);
      rows.replaceChildren(...[...value, ...rest].map(drawRow));
    };
    const drawRow = (one) => {
      const at = value.indexOf(one);
      const { label } = field.choices.find((other) => other.value === one);
      const move = (step) => {
        const next = [...value];
        next.splice(at, 1);
        next.splice(at + step, 0, one);
        set(next);
        rows.children[at + step].querySelector(`.kv-icon-${step < 0 ? "up" : "down"}`)?.parentElement.focus();
      };
      const tick = K.el("input", { type: "checkbox", "aria-label": label, on: { change: () => set(at < 0 ? [...value, one] : value.filter((other) => other !== one)) } });
      tick.checked = at >= 0;
      return K.el("li", { class: at < 0 ? "kv-off" : null }, tick, K.el("span", { text: label }),
        K.button("ui.up", "up", () => move(-1), { class: "kv-tool", disabled: at <= 0 }),
        K.button("ui.down", "down", () => move(1), { class: "kv-tool", disabled: at < 0 || at === value.length - 1 }));
    };
    return { element: rows, read: () => value, write };
  };
  const KINDS = { int: number, float: number, size: text, text, layers: text, choice, bool: toggle, list };
  K.field = (field, id, changed) => {
    const control = KINDS[field.kind](field, id, changed);
    control.write(field.value);
    return control;
  };
})();
