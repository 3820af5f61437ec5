// Files: dropped anywhere or chosen, uploaded one after another, and shown while they are read.
(() => {
  const K = window.kvchat;
  let uploading = []; // names on their way up
  let failures = []; // {name, message, remedy}
  let documents = [];

  const chooser = K.el("input", { type: "file", multiple: true, accept: ".pdf,.docx,.html,.htm,.md,.markdown,.txt", hidden: true, tabindex: "-1", "aria-hidden": "true" });
  chooser.addEventListener("change", () => {
    K.addFiles([...chooser.files]);
    chooser.value = "";
  });
  K.chooseFiles = () => chooser.click();

  // One file after another; a question that is sent meanwhile waits, for they belong to it.
  K.uploaded = Promise.resolve();
  K.addFiles = (files) => {
    uploading.push(...files.map((file) => file.name));
    K.emit("documents", documents);
    K.uploaded = files.reduce((before, file) => before.then(() => add(file)), K.uploaded);
  };
  const add = async (file) => {
    await bring(file);
    uploading = uploading.slice(1);
    await K.refreshDocuments();
  };
  // A chat that was saved as a file says so in its first line.
  const isChat = async (file) => file.name.toLowerCase().endsWith(".json") && (await file.slice(0, 64).text()).includes('"kvchat_chat"');
  const bring = async (file) => {
    if (await isChat(file)) return K.importChat(file);
    let path;
    try {
      ({ path } = await K.upload(file));
    } catch {
      failures.push({ name: file.name, message: K.say("ui.upload_failed"), remedy: K.say("ui.upload_failed.remedy") });
      return;
    }
    const found = await K.call("add_document", { chat: K.chat, path, name: file.name });
    if (found.chat && K.chat === null) {
      K.adopt(found.chat);
      K.act("open");
    }
    if (found.error) failures.push({ name: file.name, ...found.error });
  };

  K.refreshDocuments = async () => {
    const chat = K.chat;
    const found = await K.call("documents", { chat });
    if (chat !== K.chat || !found.documents) return;
    documents = found.documents;
    if (await isNothing()) return;
    K.documentNames = Object.fromEntries(documents.map((one) => [one.document, one.name]));
    K.switchedOff = new Set(documents.filter((one) => one.chosen === "off").map((one) => one.document));
    K.emit("documents", documents);
  };
  // Files that cannot be read leave no empty chat behind: what was wrong with them stays said here.
  const isNothing = async () => {
    const { chat, turns, live } = K.notes;
    const isSomething = chat !== K.chat || turns.length || live || uploading.length;
    if (!K.chat || isSomething || !documents.length || !documents.every((one) => one.problem && !one.asks_password)) return false;
    const bad = documents.map((one) => ({ name: one.name, ...one.problem, seenAs: one.document }));
    const { gone } = await K.call("tidy", { chat: K.chat });
    if (gone) leaveNothing([...failures, ...bad]);
    return Boolean(gone);
  };
  const leaveNothing = (said = failures) => {
    failures = said;
    K.adopt(null);
    documents = [];
    K.emit("documents", documents);
    K.act("open");
  };
  // Progress comes with the frames; what a finished document is like has to be asked for.
  let seen = "";
  K.on("frame", (frame) => {
    const now = JSON.stringify((frame.documents ?? []).map((one) => [one.name, one.done, one.tokens, one.problem]));
    if (now === seen) return;
    seen = now;
    K.refreshDocuments();
  });
  let asking = false;
  K.on("notes", (notes) => {
    if (Boolean(notes.live) !== asking) K.refreshDocuments();
    else isNothing(); // the files may be known before the chat is shown
    asking = Boolean(notes.live);
  });
  K.on("ledger", () => K.refreshDocuments()); // how a document is read is decided with a question
  let left = null;
  let stays = false; // the same page under another name: what it says of files stays
  K.on("adopt", () => (stays = true));
  K.on("chat", (chat) => {
    if (left && left !== chat && !K.notes.turns.length) K.call("tidy", { chat: left });
    left = chat;
    if (!stays) failures = [];
    stays = false;
    documents = [];
    K.emit("documents", documents);
    K.refreshDocuments();
  });

  // The strip above the box: what is being read, what cannot be.
  K.attachments = () => {
    const strip = K.el("div", { class: "kv-strip", "aria-live": "polite", hidden: true });
    const draw = () => {
      // how a document is read is decided with a question: until then it goes with the next one
      const pending = documents.filter((one) => !one.problem && (one.mode === null || one.pages_done < one.num_pages));
      const broken = inOrder([...failures, ...documents.filter((one) => one.problem).map((one) => ({ ...one.problem, ...one }))]);
      if (broken.length < 2) all = false;
      const shown = all ? broken : broken.slice(0, 1); // the others are told of
      const chips = [...uploading.map((name) => chip(name, K.say("ui.uploading"), null)), ...pending.map(pendingChip)];
      const rows = [
        ...shown.map((one) => K.el("div", { class: "kv-broken" }, K.icon("note"),
          K.el("div", {}, K.el("strong", { text: one.name }), K.el("span", { text: ` ${one.message} ${one.remedy}` })),
          K.button("ui.close", "close", () => forget(one), { class: "kv-tool" }))),
        broken.length > shown.length
          ? K.el("button", { type: "button", class: "kv-link kv-broken-more", text: K.say("ui.broken.more", { files: broken.length - shown.length }), on: { click: () => { all = true; draw(); } } })
          : null,
        chips.length ? K.el("div", { class: "kv-pending" }, ...chips) : null,
      ].filter(Boolean);
      strip.replaceChildren(...rows);
      K.show(strip, rows.length > 0);
    };
    K.on("documents", draw);
    return strip;
  };
  // What waits for a password comes first, then the newest: files fail at once or only when they are
  // read, so in the order in which it was seen here.
  const seenAt = new Map();
  const inOrder = (list) => {
    const key = (one) => one.document ?? one.seenAs ?? one;
    for (const one of list) if (!seenAt.has(key(one))) seenAt.set(key(one), seenAt.size);
    const waits = (one) => Number(Boolean(one.asks_password));
    return list.sort((a, b) => waits(b) - waits(a) || seenAt.get(key(b)) - seenAt.get(key(a)));
  };
  let all = false; // whether older notices are shown as well
  // How many pages there are is known once the first of them is read.
  K.readingSaid = (one) => (one.num_pages ? K.say("ui.reading", { done: one.pages_done, of: one.num_pages }) : K.say("ui.reading.begun"));
  const pendingChip = (one) => {
    const done = one.num_pages > 0 && one.pages_done >= one.num_pages;
    const words = done ? K.say("ui.pages", { pages: one.num_pages }) : K.readingSaid(one);
    const made = chip(one.name, words, done ? undefined : one.num_pages ? one.pages_done / one.num_pages : null);
    made.append(K.button("ui.document.remove", "close", () => forget(one), { class: "kv-tool" }));
    return made;
  };
  const forget = async (one) => {
    failures = failures.filter((other) => other !== one);
    K.emit("documents", documents);
    if (one.document) await K.call("remove_document", { chat: K.chat, document: one.document });
    await K.refreshDocuments();
  };
  // `share`: how much of it is read; null where nobody knows, none where all of it is
  const chip = (name, words, share) => {
    const fill = K.el("i", { class: share === null ? "kv-unknown" : null });
    if (share) fill.style.width = `${(share * 100).toFixed(1)}%`;
    return K.el("div", { class: "kv-reading" }, K.icon("file"), K.el("span", { class: "kv-reading-name", text: name, title: name }), K.el("span", { class: "kv-muted", text: words }),
      share === undefined ? null : K.el("span", { class: "kv-progress" }, fill));
  };

  // Dropping anywhere in the window
  const veil = K.el("div", { class: "kv-veil", hidden: true }, K.el("div", {}, K.icon("file"), K.el("strong", { text: K.say("ui.drop") }), K.el("span", { text: K.say("ui.drop.hint") })));
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  let depth = 0;
  const listen = (name, act) =>
    addEventListener(name, (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      event.stopPropagation();
      act(event);
    }, true);
  listen("dragenter", () => {
    depth += 1;
    K.show(veil, true);
  });
  listen("dragover", (event) => (event.dataTransfer.dropEffect = "copy"));
  listen("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (!depth) K.show(veil, false);
  });
  listen("drop", (event) => {
    depth = 0;
    K.show(veil, false);
    K.addFiles([...event.dataTransfer.files]);
  });
  addEventListener("DOMContentLoaded", () => document.body.append(veil, chooser));
  if (document.body) document.body.append(veil, chooser);
})();
