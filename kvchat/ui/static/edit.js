// Editing a question in its place. Sending it makes a new version; the old one stays behind the switcher.
(() => {
  const K = window.kvchat;
  K.edit = async (turn) => {
    const bubble = document.getElementById(`kv-ask-${turn}`);
    if (!bubble || bubble.querySelector("form")) return;
    const found = await K.call("source", { chat: K.chat, turn });
    if (found.text === undefined) return;
    const box = K.el("textarea", { class: "kv-edit", rows: "1", "aria-label": K.say("ui.edit") });
    box.value = found.text;
    const end = () => {
      form.remove();
      bubble.classList.remove("kv-editing");
    };
    const send = () => {
      const text = box.value.trim();
      if (!text) return;
      end();
      K.act("edit", { turn, text });
    };
    const form = K.el("form", { class: "kv-edit-form" }, box,
      K.el("div", { class: "kv-edit-tools" },
        K.el("span", { class: "kv-muted", text: K.say("ui.edit.hint") }),
        K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.cancel"), on: { click: end } }),
        K.el("button", { type: "submit", class: "kv-primary", text: K.say("ui.send") })));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      send();
    });
    box.addEventListener("keydown", (event) => {
      if (event.isComposing || event.keyCode === 229) return;
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        send();
      }
      if (event.key === "Escape") {
        event.stopPropagation();
        end();
      }
    });
    box.addEventListener("input", () => K.grow(box, 320));
    bubble.classList.add("kv-editing");
    bubble.append(form);
    K.grow(box, 320);
    box.focus();
    box.setSelectionRange(box.value.length, box.value.length);
  };
})();
