// What can be done to a chat of the list: rename, save as a file, delete. A form takes the row's place
// meanwhile and gives the focus back; Esc leaves it.
(() => {
  const K = window.kvchat;

  K.chatTools = (item, row) =>
    K.el("span", { class: "kv-chat-tools" },
      K.button("ui.rename_chat", "pencil", () => rename(item, row), { class: "kv-tool", "data-key": `${row.id}/rename` }),
      K.button("ui.save_chat", "save", () => save(item, row), { class: "kv-tool", "data-key": `${row.id}/save` }),
      K.button("ui.delete_chat", "trash", () => confirmDelete(item, row), { class: "kv-tool", "data-key": `${row.id}/delete` }));

  const replaced = (item, form, key, first) => {
    let ended = false;
    const end = async (refocus = true) => {
      if (ended) return; // taking the form away takes the focus from it, which may end it as well
      ended = true;
      form.remove();
      await K.refreshChats();
      if (refocus) document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
    };
    form.addEventListener("keydown", (event) => {
      if (event.isComposing || event.keyCode === 229 || event.key !== "Escape") return;
      event.stopPropagation();
      end();
    });
    item.replaceChildren(form);
    first.focus();
    return end;
  };

  const rename = (item, row) => {
    const name = K.el("input", { type: "text", class: "kv-rename", value: K.titleOf(row), maxlength: "120", "aria-label": K.say("ui.rename_chat") });
    const form = K.el("form", { class: "kv-chat-form" }, name);
    const end = replaced(item, form, row.id, name);
    name.select();
    const keep = async (refocus) => {
      const title = name.value.trim();
      if (title && title !== row.title && form.isConnected) await K.call("rename", { chat: row.id, title });
      end(refocus);
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      keep(true);
    });
    name.addEventListener("blur", () => keep(false));
  };

  const save = (item, row) => {
    const link = (kind, code) => K.el("a", { class: "kv-plain", href: `/api/export?chat=${encodeURIComponent(row.id)}&as=${kind}&lang=${K.lang}`, download: "", text: K.say(code), on: { click: () => setTimeout(end, 0) } });
    const markdown = link("md", "ui.save.markdown");
    const form = K.el("form", { class: "kv-chat-form kv-choices" }, markdown, link("json", "ui.save.json"),
      K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.cancel"), on: { click: () => end() } }));
    const end = replaced(item, form, `${row.id}/save`, markdown);
  };

  const confirmDelete = (item, row) => {
    const yes = K.el("button", { type: "button", class: "kv-danger", text: K.say("ui.delete") });
    const no = K.el("button", { type: "button", class: "kv-plain", text: K.say("ui.keep") });
    const form = K.el("form", { class: "kv-chat-form kv-confirm" }, K.el("span", { text: K.say("ui.delete.sure", { title: K.titleOf(row) }) }), K.el("span", { class: "kv-confirm-buttons" }, no, yes));
    const end = replaced(item, form, `${row.id}/delete`, no);
    yes.addEventListener("click", async () => {
      await K.call("delete", { chat: row.id });
      await end(false);
      if (row.id === K.chat) K.newChat();
      else document.querySelector(".kv-new").focus();
    });
    no.addEventListener("click", () => end());
  };

  // A chat that was saved as JSON comes back as a chat of its own.
  const chooser = K.el("input", { type: "file", accept: ".json,application/json", hidden: true, "aria-hidden": "true", id: "kv-chat-file", tabindex: "-1" });
  chooser.addEventListener("change", async () => {
    for (const file of [...chooser.files]) await K.importChat(file);
    chooser.value = "";
  });
  K.chooseChat = () => chooser.click();
  K.importChat = async (file) => {
    let path;
    try {
      ({ path } = await K.upload(file));
    } catch {
      return K.emit("problem", { message: K.say("ui.upload_failed"), remedy: K.say("ui.upload_failed.remedy") });
    }
    const found = await K.call("import_chat", { path });
    if (found.error) return K.emit("problem", found.error);
    document.body.classList.remove("kv-side-open");
    K.open(found.chat);
    K.emit("heard", K.say("ui.imported"));
  };
  if (document.body) document.body.append(chooser);
  else addEventListener("DOMContentLoaded", () => document.body.append(chooser));
})();
