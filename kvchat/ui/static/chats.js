// The list of chats: new, open, search, and what is still there of each one.
(() => {
  const K = window.kvchat;
  const DAY_S = 86400;
  let rows = [];
  let query = "";
  let list, said;

  K.draw.chats = (box) => {
    const search = K.el("input", { type: "search", class: "kv-search", placeholder: K.say("ui.search"), "aria-label": K.say("ui.search"), autocomplete: "off", spellcheck: "false" });
    let waiting = 0;
    search.addEventListener("input", () => {
      query = search.value.trim();
      clearTimeout(waiting);
      waiting = setTimeout(K.refreshChats, 150);
    });
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !search.value) return;
      event.stopPropagation();
      search.value = query = "";
      K.refreshChats();
    });
    K.focusSearch = () => {
      document.body.classList.add("kv-side-open");
      // once it can be seen
      setTimeout(() => {
        search.focus();
        search.select();
      }, 0);
    };
    list = K.el("div", { class: "kv-chat-list" });
    said = K.el("p", { class: "kv-only-heard", role: "status" });
    box.append(
      K.el("nav", { class: "kv-side", "aria-label": K.say("ui.chats") },
        K.el("button", { type: "button", class: "kv-new", on: { click: () => K.newChat() } }, K.icon("plus"), K.el("span", { text: K.say("ui.new_chat") })),
        K.el("div", { class: "kv-side-line" },
          K.el("label", { class: "kv-search-box" }, K.icon("search"), search),
          K.button("ui.import", "import", () => K.chooseChat(), { class: "kv-tool" })),
        said, list)
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
    K.put(said, query ? K.say("ui.chats.found", { chats: rows.length }) : "");
    K.emit("chats", rows);
  };
  K.titleOf = (row) => row.title || K.say("ui.chats.untitled");

  const group = (row) => {
    const midnight = new Date().setHours(0, 0, 0, 0) / 1000;
    if (row.updated_at_s >= midnight) return "today";
    return row.updated_at_s >= midnight - 7 * DAY_S ? "week" : "older";
  };
  const draw = () => {
    if (!list || list.querySelector("form")) return; // a name is being written
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const parts = [];
    let last = null;
    let items;
    for (const row of rows) {
      if (group(row) !== last) {
        last = group(row);
        items = K.el("ul", { class: "kv-chat-items" });
        parts.push(K.el("section", {}, K.el("h2", { class: "kv-chat-group", text: K.say(`ui.chats.${last}`) }), items));
      }
      items.append(drawRow(row));
    }
    if (!rows.length) parts.push(K.el("p", { class: "kv-hint", text: K.say(query ? "ui.chats.not_found" : "ui.chats.none") }));
    list.replaceChildren(...parts);
    if (focused) list.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  };
  // What is being made in it; else whether the next question has to read it again, and how long that
  // takes here. Of the chat that is open the newest frame says it, of the others the list.
  const standing = (row) => {
    const here = row.id === K.chat && K.notes.chat === row.id;
    const status = here ? K.notes.live?.status : row.status;
    if (status) return K.say(status === "summing" ? "ui.live.reading" : `ui.live.${status}`);
    const bytes = (here && K.frame?.kv?.chat_bytes) || row.kv_bytes;
    if (bytes) return K.say("ui.chats.loaded", { bytes: K.size(bytes) });
    if (row.disk_bytes) return K.say("ui.chats.disk", { bytes: K.size(row.disk_bytes) });
    if (!row.num_turns) return "";
    const code = row.other_disk_bytes ? "ui.chats.other" : "ui.chats.text";
    return row.read_s ? K.say(code, { s: K.seconds(Math.max(0.1, row.read_s)) }) : K.say(`${code}.unknown`);
  };
  const aboutOf = (row) => [K.say("ui.chats.turns", { turns: row.num_turns }), standing(row)].filter(Boolean).join(" · ");
  const drawRow = (row) => {
    const here = row.id === K.chat;
    const item = K.el("li", { class: `kv-chat-row${here ? " kv-here" : ""}` });
    const open = K.el("a", { class: "kv-chat-open", href: K.address(row.id), "aria-current": here ? "page" : null, "data-key": row.id },
      K.el("span", { class: "kv-chat-title", text: K.titleOf(row), title: K.titleOf(row) }),
      K.el("span", { class: "kv-chat-about", text: aboutOf(row) }));
    open.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return; // a new tab, as with any link
      event.preventDefault();
      document.body.classList.remove("kv-side-open");
      K.open(row.id);
    });
    item.append(open, K.chatTools(item, row), ...(row.hits ?? []).map((hit) => found(row, hit)));
    return item;
  };
  // A place where the words stand: it leads to the message, on whichever branch that is.
  const found = (row, hit) => {
    const pieces = hit.snippet.map(([text, isWord]) => K.el(isWord ? "mark" : "span", { text }));
    const who = K.say(hit.role === "user" ? "ui.hit.question" : "ui.hit.reply", { turn: hit.turn });
    return K.el("button", { type: "button", class: "kv-hit", "data-key": hit.message, on: { click: () => lead(row, hit) } },
      K.el("span", { class: "kv-hit-who", text: who }), K.el("span", {}, ...pieces));
  };
  const lead = async (row, hit) => {
    const where = await K.call("find", { chat: row.id, message: hit.message });
    if (where.error) return K.emit("problem", where.error);
    document.body.classList.remove("kv-side-open");
    K.open(row.id);
    K.shown = where.turns - where.turn + 4;
    K.act("open");
    K.lookFor(where.turn, hit.role);
  };

  K.on("chat", () => {
    draw();
    K.refreshChats();
  });
  // What moves with an answer is written in its place; no row is drawn anew for it.
  const follow = () => {
    const row = rows.find((one) => one.id === K.chat);
    const about = row && list?.querySelector(".kv-here .kv-chat-about");
    if (about) K.put(about, aboutOf(row));
  };
  // What other chats hold is known to the list only: asked for when the model turns to something else,
  // and when what is kept of them all is not what it was.
  const PAUSE_MS = 1500;
  let kept = "";
  let later = 0;
  K.on("frame", (frame) => {
    follow();
    const { stage } = frame.runtime ?? {};
    const held = stage === "ready" ? frame.kv?.device_bytes : ""; // else it grows with each token
    const now = [stage, held, frame.kv?.idle_bytes, frame.kv?.disk_bytes].join();
    if (now === kept || later) return;
    kept = now;
    later = setTimeout(() => {
      later = 0;
      K.refreshChats();
    }, PAUSE_MS);
  });

  // Titles, sizes and order change when an answer begins or ends, and when other turns are shown.
  let known = "";
  K.on("notes", (notes) => {
    const now = [Boolean(notes.live), notes.earlier + notes.turns.length, notes.turns.at(-1)?.name].join();
    if (now !== known) K.refreshChats();
    known = now;
    follow();
  });
  K.on("online", (is) => is && K.refreshChats());
  addEventListener("focus", () => K.refreshChats());
})();
