// Editing a question in its place. Sending it makes a new version; the old one stays behind the switcher.
(() => {
  const K = window.kvchat;
  let end = () => false; // ends what is being edited; says whether there was anything
  K.endEdit = () => end();
  K.edit = (turn) => {
    const bubble = document.getElementById(`kv-ask-${turn}`);
    if (!bubble) return;
    const open = bubble.querySelector(".kv-edit");
    if (open) return open.focus();
    end();
    begin(turn, bubble);
  };
  // The words are in the bubble already: the form stands at once, whatever the server is busy with.
  const begin = (turn, bubble) => {
    const box = K.el("textarea", { class: "kv-edit", rows: "1", "aria-label": K.say("ui.edit") });
    const name = K.notes.turns.find((note) => note.turn === turn)?.name;
    const shown = bubble.querySelector(".kv-words").textContent;
    box.value = shown;
    const listening = new AbortController();
    end = () => {
      const was = form.isConnected;
      listening.abort();
      form.remove();
      bubble.classList.remove("kv-editing");
      end = () => false;
      return was;
    };
    const send = () => {
      const text = box.value.trim();
      if (!text) return;
      if (!K.online) return K.emit("problem", K.offline());
      if (K.notes.live) return K.emit("hint", "ui.wait");
      end();
      K.act("edit", { turn, name, text });
    };
    const form = K.el("form", { class: "kv-edit-form" }, box,
      K.el("div", { class: "kv-edit-tools" },
        K.el("span", { class: "kv-muted", text: K.say("ui.edit.hint") }),
        K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.cancel"), on: { click: () => end() } }),
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
    // The second half of a double click lands in the box or beside it: it selects nothing, and takes
    // no focus.
    const begun = performance.now();
    const keep = (event) => {
      const second = event.detail > 1 && performance.now() - begun < 600;
      if (second || !event.target.closest("textarea, button")) event.preventDefault();
    };
    bubble.closest(".message-row, .user-row")?.addEventListener("mousedown", keep, { signal: listening.signal });
    bubble.classList.add("kv-editing");
    bubble.append(form);
    K.grow(box, 320);
    box.focus();
    box.setSelectionRange(box.value.length, box.value.length);
  };
  K.on("chat", () => end());
})();
