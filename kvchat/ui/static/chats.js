// The list of chats: new, open, rename, delete, search.
(() => {
  const K = window.kvchat;
  const DAY_S = 86400;
  let rows = [];
  let query = "";
  let list;

  K.draw.chats = (box) => {
    const search = K.el("input", { type: "search", class: "kv-search", placeholder: K.say("ui.search"), "aria-label": K.say("ui.search"), autocomplete: "off", spellcheck: "false" });
    let waiting = 0;
    search.addEventListener("input", () => {
      query = search.value.trim();
      clearTimeout(waiting);
      waiting = setTimeout(K.refreshChats, 150);
    });
    list = K.el("div", { class: "kv-chat-list" });
    box.append(
      K.el("nav", { class: "kv-side", "aria-label": K.say("ui.chats") },
        K.el("button", { type: "button", class: "kv-new", on: { click: () => K.newChat() } }, K.icon("plus"), K.el("span", { text: K.say("ui.new_chat") })),
        K.el("label", { class: "kv-search-box" }, K.icon("search"), search),
        list
      )
    );
    K.refreshChats();
  };
  K.newChat = () => {
    document.body.classList.remove("kv-side-open");
    K.open(null);
    K.emit("focus");
  };

  K.refreshChats = async () => {
    const asked = query;
    const found = await K.call("chats", { query });
    if (!found.chats || asked !== query) return;
    rows = found.chats;
    draw();
  };

  const group = (row) => {
    const midnight = new Date().setHours(0, 0, 0, 0) / 1000;
    if (row.updated_at_s >= midnight) return "today";
    return row.updated_at_s >= midnight - 7 * DAY_S ? "week" : "older";
  };
  const draw = () => {
    if (!list || list.querySelector("form")) return; // a name is being written
    const parts = [];
    let last = null;
    for (const row of rows) {
      if (group(row) !== last) {
        last = group(row);
        parts.push(K.el("h2", { class: "kv-chat-group", text: K.say(`ui.chats.${last}`) }));
      }
      parts.push(drawRow(row));
    }
    if (!rows.length) parts.push(K.el("p", { class: "kv-hint", text: K.say(query ? "ui.chats.not_found" : "ui.chats.none") }));
    list.replaceChildren(...parts);
  };
  const titleOf = (row) => row.title || K.say("ui.chats.untitled");
  const drawRow = (row) => {
    const about = [K.say("ui.chats.turns", { turns: row.num_turns })];
    if (row.kv_bytes) about.push(`KV ${K.size(row.kv_bytes)}`);
    const here = row.id === K.chat;
    const item = K.el("div", { class: `kv-chat-row${here ? " kv-here" : ""}` });
    const open = K.el("a", { class: "kv-chat-open", href: K.address(row.id), "aria-current": here ? "true" : null },
      K.el("span", { class: "kv-chat-title", text: titleOf(row), title: titleOf(row) }),
      K.el("span", { class: "kv-chat-about", text: about.join(" · ") }));
    open.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a new tab, as with any link
      event.preventDefault();
      document.body.classList.remove("kv-side-open");
      K.open(row.id);
    });
    item.append(open, K.el("span", { class: "kv-chat-tools" },
      K.button("ui.rename_chat", "pencil", () => rename(item, row), { class: "kv-tool" }),
      K.button("ui.delete_chat", "trash", () => confirmDelete(item, row), { class: "kv-tool" })));
    return item;
  };

  const rename = (item, row) => {
    const name = K.el("input", { type: "text", class: "kv-rename", value: titleOf(row), maxlength: "120", "aria-label": K.say("ui.rename_chat") });
    const form = K.el("form", { class: "kv-chat-form" }, name);
    let finished = false;
    const done = async (save) => {
      if (finished) return; // taking the form away takes the focus from it, which ends it as well
      finished = true;
      const title = name.value.trim();
      form.remove();
      if (save && title && title !== row.title) await K.call("rename", { chat: row.id, title });
      K.refreshChats();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      done(true);
    });
    name.addEventListener("keydown", (event) => {
      if (event.isComposing || event.keyCode === 229) return;
      if (event.key === "Escape") {
        event.stopPropagation();
        done(false);
      }
    });
    name.addEventListener("blur", () => done(true));
    item.replaceChildren(form);
    name.focus();
    name.select();
  };
  const confirmDelete = (item, row) => {
    const yes = K.el("button", { type: "button", class: "kv-danger", text: K.say("ui.delete") });
    const no = K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.keep") });
    const form = K.el("form", { class: "kv-chat-form kv-confirm" }, K.el("span", { text: K.say("ui.delete.sure", { title: titleOf(row) }) }), K.el("span", { class: "kv-confirm-buttons" }, no, yes));
    const done = () => {
      form.remove();
      K.refreshChats();
    };
    yes.addEventListener("click", async () => {
      await K.call("delete", { chat: row.id });
      done();
      if (row.id === K.chat) K.newChat();
    });
    no.addEventListener("click", done);
    item.replaceChildren(form);
    no.focus();
  };

  K.on("chat", () => {
    draw();
    K.refreshChats();
  });
  // Titles, sizes and order change when an answer begins or ends.
  let live = false;
  let known = 0;
  K.on("notes", (notes) => {
    const is = Boolean(notes.live);
    const count = notes.earlier + notes.turns.length;
    if (is !== live || count !== known) K.refreshChats();
    live = is;
    known = count;
  });
  addEventListener("focus", () => K.refreshChats());
})();
