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
  // One text a line
  const texts = (field, id, changed) => {
    const box = K.el("textarea", { id, class: "kv-input", rows: "2", spellcheck: "false", "aria-describedby": `${id}-help` });
    box.addEventListener("input", changed);
    const read = () => box.value.split("\n").map((one) => one.trim()).filter(Boolean);
    return { element: box, read, write: (value) => (box.value = value.join("\n")) };
  };
  // A size: written, or dragged as far as the memory goes that it is a part of
  const STEPS = 256;
  const size = (field, id, changed) => {
    const control = text(field, id, changed);
    if (!field.capacity) return control;
    const box = control.element;
    const step = Math.max(1, Math.round(field.capacity / STEPS / 2 ** 20));
    const slider = K.el("input", { type: "range", class: "kv-slider", min: 0, max: Math.floor(field.capacity / step / 2 ** 20), step: 1, "aria-label": field.label, "aria-describedby": `${id}-help` });
    const paint = () => {
      slider.style.setProperty("--at", `${(slider.value / slider.max) * 100}%`);
      slider.setAttribute("aria-valuetext", box.value || K.say("ui.auto"));
      slider.classList.toggle("kv-automatic", box.value === "");
    };
    const follow = () => {
      slider.value = Math.round((bytesOf(box.value) ?? 0) / step / 2 ** 20);
      paint();
    };
    box.addEventListener("input", follow);
    slider.addEventListener("input", () => {
      const least = Math.max(Number(slider.value) * step, field.optional && field.least !== 0 ? 1 : 0);
      box.value = least ? `${least} MiB` : "0";
      paint();
      changed();
    });
    const write = (value) => {
      control.write(value);
      follow();
    };
    return { element: K.el("span", { class: "kv-slide kv-slide-size" }, slider, box), read: control.read, write };
  };
  const UNITS = { "": 1, b: 1, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30, t: 2 ** 40 };
  const bytesOf = (K.bytesOf = (text) => {
    const found = /^\s*([\d.,]+)\s*([a-z]*)\s*$/i.exec(text);
    const factor = found && UNITS[found[2].toLowerCase()];
    return factor ? Number(found[1].replaceAll(",", "")) * factor : null;
  });
  const number = (field, id, changed) => {
    if (field.optional) return text(field, id, changed);
    const whole = field.kind === "int";
    const box = input(field, id, { type: "number", min: field.least, max: field.most, step: whole ? 1 : "any", inputmode: whole ? "numeric" : "decimal" });
    box.addEventListener("input", changed);
    // empty or unreadable goes to Python as it is written, which says what is wrong with it
    const read = () => (box.value === "" ? "" : Number(box.value));
    return { element: field.most <= (whole ? 8192 : 5) ? withSlider(field, box, changed) : box, read, write: (value) => { box.value = value; box.dispatchEvent(new Event("kv-write")); } };
  };
  const withSlider = (field, box, changed) => {
    const slider = K.el("input", { type: "range", class: "kv-slider", min: field.least, max: field.most, step: field.kind === "int" ? 1 : 0.01, "aria-label": field.label, tabindex: "-1" });
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
    byArrows(row, buttons, () => field.choices.findIndex((one) => one.value === value));
    return { element: note ? K.el("div", {}, row, note) : row, read: () => value, write };
  };
  // Keys and values, each in a format: what is known of the two together is said below
  const formats = (field, id, changed) => {
    let pairs = new Map(field.choices.map((one) => [one.value, one]));
    const names = field.choices.map((one) => one.value).filter((one) => !one.includes("/"));
    const joined = (key, value) => (key === value ? key : `${key}/${value}`);
    const note = K.el("div", { class: "kv-help kv-verdict", id: `${id}-note`, role: "status" });
    const parts = { key: names[0], value: names[0] };
    const rows = ["key", "value"].map((part) => {
      const buttons = names.map((name) => K.el("button", { type: "button", role: "radio", text: K.format(name), "data-value": name, on: { click: () => press(part, name) } }));
      const row = K.el("div", { class: "kv-segments", role: "radiogroup", "data-part": part, "aria-label": `${field.label}: ${K.say(`ui.formats.${part}`)}`, "aria-describedby": `${id}-note` }, ...buttons);
      byArrows(row, buttons, () => names.indexOf(parts[part]));
      return { part, row, buttons };
    });
    const press = (part, name) => {
      parts[part] = name;
      draw();
      changed();
    };
    const draw = () => {
      const chosen = pairs.get(joined(parts.key, parts.value));
      for (const { part, buttons } of rows)
        buttons.forEach((button, at) => {
          const is = names[at] === parts[part];
          const pair = part === "key" ? joined(names[at], parts.value) : joined(parts.key, names[at]);
          button.setAttribute("aria-checked", String(is));
          button.tabIndex = is ? 0 : -1;
          // with the other as it is, it failed; both are changed by way of one that did not
          button.disabled = !is && Boolean(pairs.get(pair)?.closed) && Boolean(pairs.get(names[at])?.closed);
          button.title = pairs.get(pair)?.note ?? "";
          button.classList.toggle("kv-failed", Boolean(pairs.get(pair)?.closed));
        });
      K.put(note, chosen?.note ?? "");
      note.classList.toggle("kv-failed", Boolean(chosen?.closed));
    };
    const learn = (choices) => {
      pairs = new Map(choices.map((one) => [one.value, one]));
      draw();
    };
    const write = (wanted) => {
      [parts.key, parts.value] = wanted.includes("/") ? wanted.split("/") : [wanted, wanted];
      draw();
    };
    const lines = rows.map(({ part, row }) => K.el("div", { class: "kv-pair-row" }, K.el("span", { text: K.say(`ui.formats.${part}`) }), row));
    return { element: K.el("div", { id, class: "kv-pair" }, ...lines, note), read: () => joined(parts.key, parts.value), write, learn };
  };
  // Arrow keys choose the next one that can be chosen
  const byArrows = (row, buttons, place) =>
    row.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      let next = (place() + step + buttons.length) % buttons.length;
      while (buttons[next].disabled) next = (next + step + buttons.length) % buttons.length;
      buttons[next].click();
      buttons[next].focus();
    });
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
  const KINDS = { int: number, float: number, size, text, texts, layers: text, choice, formats, bool: toggle, list };
  K.field = (field, id, changed) => {
    const control = KINDS[field.kind](field, id, changed);
    control.write(field.value);
    return control;
  };
})();
