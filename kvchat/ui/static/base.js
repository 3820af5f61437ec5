// The ground: words, numbers, elements, one event bus, and the way to Python.
(() => {
  const K = window.kvchat;
  K.draw = {};
  K.chat = new URL(location.href).searchParams.get("c") || null;
  K.tab = crypto.randomUUID ? crypto.randomUUID() : String(Math.random());
  K.shown = 0;
  K.notes = { chat: null, earlier: 0, turns: [], live: null, problem: null, gone: null };

  // What is drawn later than a frame came is told that frame too: when idle, the next is a second away.
  K.on = (name, listen) => {
    addEventListener(`kvchat:${name}`, (event) => listen(event.detail));
    if (name === "frame" && K.frame) queueMicrotask(() => listen(K.frame));
  };
  K.emit = (name, detail) => dispatchEvent(new CustomEvent(`kvchat:${name}`, { detail }));

  // What this tab of the browser remembers over a reload; nothing where storage is off.
  K.keep = (name, value) => {
    try {
      sessionStorage.setItem(name, JSON.stringify(value));
    } catch {
      // no storage: it is forgotten
    }
  };
  K.kept = (name) => {
    try {
      return JSON.parse(sessionStorage.getItem(name));
    } catch {
      return null;
    }
  };

  // Words. Templates are Python's: {name}, {name:,}, {{ and }}.
  const written = (value) => {
    if (typeof value === "number") return K.number(value);
    if (Array.isArray(value)) return K.ranges(value);
    return value === null || value === undefined ? "" : String(value);
  };
  K.has = (code) => Object.hasOwn(K.words, code);
  // A code without words says nothing on the screen; the console has it, and tests look there.
  const template = (code, facts) => {
    if (!K.has(code)) console.error(`no words for ${code}`);
    return (Object.values(facts).includes(1) && K.words[`${code}.one`]) || (K.words[code] ?? "");
  };
  K.say = (code, facts = {}) =>
    template(code, facts).replace(/\{\{|\}\}|\{(\w+)(?::[^}]*)?\}/g, (found, name) =>
      name ? written(facts[name]) : found[0]
    );

  // Numbers, as kvchat/units.py writes them
  const formats = [0, 1, 2].map((digits) => new Intl.NumberFormat(K.lang, { maximumFractionDigits: digits, minimumFractionDigits: digits }));
  K.number = (value, digits = 0) => formats[digits].format(value);
  K.size = (bytes) => {
    const size = Math.abs(bytes);
    if (size >= 2 ** 30) return `${K.number(bytes / 2 ** 30, 2)} GiB`;
    if (size >= 10 * 2 ** 20) return `${(bytes / 2 ** 20).toFixed(0)} MiB`;
    if (size >= 2 ** 20) return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
    return size >= 1024 ? `${(bytes / 1024).toFixed(0)} KiB` : `${bytes} B`;
  };
  K.seconds = (s) => K.say("ui.seconds", { s: s.toFixed(s < 10 ? 1 : 0) });
  K.ranges = (list) => {
    // [1, 2, 3, 5] -> "1–3, 5"
    const runs = [];
    for (const one of list) {
      const last = runs.at(-1);
      if (last && typeof one === "number" && one === last[1] + 1) last[1] = one;
      else runs.push([one, one]);
    }
    return runs.map(([a, b]) => (a === b ? String(a) : `${a}–${b}`)).join(", ");
  };
  // "fp/fp" -> "FP", "int6/int4" -> "INT6/INT4"
  K.format = (name) => {
    const [k, v] = name.toUpperCase().split("/");
    return k === v || !v ? k : `${k}/${v}`;
  };

  // Elements. Text goes in as text, never as HTML: most of it was written by others.
  K.el = (tag, about = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(about)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "text") element.textContent = value;
      else if (name === "on") for (const [e, f] of Object.entries(value)) element.addEventListener(e, f);
      else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  };
  K.button = (code, icon, press, about = {}) =>
    K.el(
      "button",
      { type: "button", title: K.say(code), "aria-label": K.say(code), ...about, on: { click: press } },
      K.icon(icon)
    );
  // Writes only what changed, so that nothing flickers and a screen reader is not woken.
  K.put = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };
  K.show = (element, visible) => {
    if (element.hidden === visible) element.hidden = !visible;
  };

  // The way to Python: `connect` is called when the link component stands.
  let opened;
  const ready = new Promise((resolve) => (opened = resolve));
  K.connect = (props, server, upload, watch, trigger) => {
    watch("value", () => K.hear(props.value));
    opened({ server, upload, trigger });
    K.act("open");
  };
  K.call = async (name, sent = {}) => {
    const { server } = await ready;
    try {
      return (await server[name](sent)) ?? {};
    } catch {
      return { error: { message: K.say("ui.offline"), remedy: K.say("ui.offline.remedy") } };
    }
  };
  K.upload = async (file) => (await ready).upload(file);
  // Wishes are counted: on their way they may overtake each other, and the newest is what is shown.
  let wishes = 0;
  K.wish = () => ({ tab: K.tab, number: ++wishes });
  let shows = 0; // the newest wish that is answered at once, with the chat as it is
  let heard = 0; // the newest wish of which something was drawn
  K.act = async (kind, about = {}) => {
    const { trigger } = await ready;
    const wish = K.wish();
    if (["open", "switch", "remove"].includes(kind)) {
      shows = wish.number;
      setTimeout(look, patience);
    }
    trigger({ kind, ...wish, chat: K.chat, shown: K.shown, ...about });
  };
  // What was under way when a newer wish was made may arrive after it, and was then drawn over it.
  const isNewest = ({ wish }) => {
    if (wish < heard) {
      again();
      return false;
    }
    heard = wish ?? heard;
    if (heard >= shows) patience = LEAST_PATIENCE_MS;
    return true;
  };
  // A drawing that does not come at all is asked for again: the later, the longer it was waited for.
  const LEAST_PATIENCE_MS = 1500;
  let patience = LEAST_PATIENCE_MS;
  const look = () => {
    if (heard >= shows || !K.online) return;
    patience = Math.min(2 * patience, 30000);
    again();
  };

  // Which chat this tab shows. Notes of a chat that was left may still arrive: they are not for us.
  let isNew = false;
  let before = 0; // wishes before the question that begins a chat: what they draw is of another one
  K.hear = (notes) => {
    if (!notes || typeof notes !== "object" || !isNewest(notes)) return;
    if (K.chat === null && isNew && notes.chat && notes.wish > before) K.adopt(notes.chat);
    if (notes.gone && (notes.gone === K.chat || K.chat === null)) lost = notes;
    if (notes.gone && notes.gone === K.chat) {
      // a chat that was shown is known to have been there: somebody deleted it
      if (K.notes.chat === notes.gone)
        notes.problem = { ...notes.problem, message: K.say("ui.deleted"), remedy: K.say("ui.deleted.remedy") };
      K.adopt(null);
    }
    if (notes.chat !== K.chat) {
      if (notes.chat) again(); // a chat that was left was drawn over this one
      return;
    }
    // several wishes may find the chat gone, and an empty page after that says nothing of it
    if (!notes.problem && notes.chat === null) notes.problem = lost?.problem ?? null;
    K.notes = notes;
    K.emit("notes", notes);
  };
  let lost = null; // notes of a chat that was not there, until another is shown or that was read
  K.on("closed", () => (lost = null));
  let waiting = 0;
  const again = () => {
    clearTimeout(waiting);
    // not while a chat is begun: nothing is open yet, and asking for that would end what tells of it
    waiting = setTimeout(() => document.hidden || (isNew && K.chat === null) || K.act("open"), 100);
  };
  K.adopt = (chat) => {
    isNew = false;
    if (chat) lost = null;
    K.emit("adopt", chat);
    K.chat = chat;
    history.replaceState(null, "", K.address(chat));
    K.emit("chat", chat);
  };
  K.address = (chat) => location.pathname + (chat ? `?c=${encodeURIComponent(chat)}` : "");
  K.open = (chat, push = true) => {
    isNew = false;
    lost = null;
    K.chat = chat;
    K.shown = 0;
    if (push) history.pushState(null, "", K.address(chat));
    K.emit("chat", chat);
    K.act("open");
  };
  K.ask = (text) => {
    isNew = K.chat === null;
    before = wishes;
    K.act("ask", { text });
  };
  addEventListener("popstate", () =>
    K.open(new URL(location.href).searchParams.get("c") || null, false)
  );

  K.copy = async (text, button) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      copyByHand(text); // no permission, or a page that is not on this computer
    }
    button?.classList.add("kv-done");
    setTimeout(() => button?.classList.remove("kv-done"), 1200);
  };
  const copyByHand = (text) => {
    const area = K.el("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    focused?.focus();
  };
})();
