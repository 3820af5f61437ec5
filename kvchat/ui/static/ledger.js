// What was done to which turn, and why: the last action under the bar, and the whole list.
// Entries are codes and arguments; the sentences are made here, in the language of the page.
(() => {
  const K = window.kvchat;
  let entries = [];

  const facts = (entry) => ({
    ...entry.arguments,
    formats: (entry.arguments?.formats ?? "").split(" + ").map(K.format).join(" + ") || "…", // older entries name none
    turns: K.ranges(entry.arguments?.turns ?? entry.turns ?? []),
    bytes: K.size(entry.bytes_measured ?? entry.bytes_predicted ?? 0),
    bytes_measured: K.size(entry.bytes_measured ?? 0),
    bytes_predicted: K.size(entry.bytes_predicted ?? 0),
  });
  const what = (entry) => K.say(K.has(`ledger.${entry.code}`) ? `ledger.${entry.code}` : "ui.ledger.unnamed", { code: entry.code, ...facts(entry) });
  const why = (entry) => (entry.reason && K.has(`reason.${entry.reason}`) ? K.say(`reason.${entry.reason}`, facts(entry)) : "");
  // at_s is the time of day where it is one (seconds since 1970), else only an order
  const when = (entry) => {
    if (!(entry.at_s > 1e9)) return "";
    const at = new Date(entry.at_s * 1000);
    const day = at.toDateString() === new Date().toDateString() ? {} : { month: "short", day: "numeric" };
    return at.toLocaleString(K.lang, { ...day, hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  };

  // What is done turn after turn and takes nothing from the chat, is one row: each row is its entries,
  // oldest first, and stands where the newest does.
  const isPassing = (entry) => entry.turn && !entry.undo && !entry.lost_tokens && !entry.turns?.length && !entry.documents?.length;
  const kindOf = (entry) => [entry.code, entry.reason, entry.arguments?.name].join("/");
  K.folded = (list) => {
    const rows = new Map(); // the newest entry -> all of its row
    const newest = new Map(); // kind -> the newest entry
    for (const entry of list) {
      const before = isPassing(entry) ? newest.get(kindOf(entry)) : undefined;
      const goesOn = before && entry.turn - before.turn <= 1;
      const row = goesOn ? [...rows.get(before), entry] : [entry];
      if (goesOn) rows.delete(before);
      rows.set(entry, row);
      if (isPassing(entry)) newest.set(kindOf(entry), entry);
    }
    return [...rows.values()];
  };

  K.entryWhat = what;
  K.entryWhy = why;
  K.entryWhen = when;

  K.lastAction = () => {
    const text = K.el("span", { class: "kv-last-what" });
    const time = K.el("span", { class: "kv-muted kv-last-when" });
    const count = K.el("span");
    const more = K.el("button", { type: "button", class: "kv-link", on: { click: () => K.panel.open("ledger") } }, count);
    const row = K.el("div", { class: "kv-last", role: "status" }, K.el("strong", { text: K.say("ui.ledger.last") }), text, K.el("span", { class: "kv-space" }), time, more);
    const draw = () => {
      const last = entries.at(-1);
      row.classList.toggle("kv-quiet", !last);
      const reason = last ? why(last) : "";
      K.put(text, last ? what(last) + (reason ? ` — ${reason}` : "") : K.say("ui.ledger.none"));
      text.title = text.textContent;
      K.put(time, last ? when(last) : "");
      K.put(count, K.say("ui.ledger.count", { count: K.folded(entries).length }));
      K.show(more, entries.length > 0);
    };
    K.on("entries", draw);
    draw();
    return row;
  };

  K.panel.tab("ledger", 30, (body) => {
    const list = K.el("ol", { class: "kv-ledger" });
    const empty = K.el("p", { class: "kv-hint", text: K.say("ui.ledger.empty") });
    const file = K.el("a", { class: "kv-link", download: true, text: K.say("ui.ledger.file"), title: K.say("ui.ledger.file.help") });
    body.append(empty, list, file);
    const draw = () => {
      K.show(empty, entries.length === 0);
      K.show(file, entries.length > 0);
      file.href = `/api/ledger?chat=${encodeURIComponent(K.chat ?? "")}`;
      const open = new Set([...list.querySelectorAll("details[open]")].map((one) => one.dataset.first));
      list.replaceChildren(...K.folded(entries).slice(-200).reverse().map((row) => drawRow(row, open)));
    };
    K.on("entries", draw);
    draw();
  });
  const drawRow = (row, open) => {
    const entry = row.at(-1);
    return K.el("li", {},
      K.el("div", { class: "kv-ledger-what", text: what(entry) }),
      why(entry) ? K.el("div", { class: "kv-muted", text: why(entry) }) : null,
      K.el("div", { class: "kv-ledger-facts kv-muted" }, ...small(entry)),
      row.length > 1 ? drawAll(row, open) : null);
  };
  const drawAll = (row, open) => {
    const first = String(row[0].number);
    const turns = [...new Set(row.map((entry) => entry.turn))];
    const lines = row.map((entry) => K.el("div", { text: [when(entry), K.say("ui.bar.turn", { turn: entry.turn }), what(entry)].filter(Boolean).join(" · ") }));
    return K.el("details", { class: "kv-ledger-all kv-muted", "data-first": first, open: open.has(first) },
      K.el("summary", { text: K.say("ui.ledger.again", { turns: K.ranges(turns), times: row.length }) }), ...lines.reverse());
  };
  const small = (entry) => {
    const parts = [when(entry)];
    const turns = entry.turn_numbers ?? [];
    if (turns.length) parts.push(K.say("ui.ledger.turns", { turns: K.ranges(turns), count: turns.length }));
    for (const one of entry.documents ?? []) {
      const name = entry.arguments?.name ?? K.name(one.document);
      parts.push(one.pages?.length ? K.say("ui.ledger.pages", { name, pages: K.ranges(one.pages), count: one.pages.length }) : name);
    }
    if (entry.bytes_measured > 0) parts.push(K.say("ui.ledger.freed", { bytes: K.size(entry.bytes_measured) }) + foretold(entry));
    else if (entry.bytes_predicted > 0) parts.push(K.say("ui.ledger.freed_predicted", { bytes: K.size(entry.bytes_predicted) }));
    parts.push(kept(entry));
    if (entry.lost_tokens) parts.push(K.say("ui.ledger.lost", { tokens: entry.lost_tokens }));
    return [...parts.filter(Boolean).map((text) => K.el("span", { text })), entry.undo ? K.undoPlace(entry.number) : null].filter(Boolean);
  };
  // What was expected of it, where that was something else.
  const foretold = ({ bytes_predicted: expected, bytes_measured: found }) =>
    expected > 0 && K.size(expected) !== K.size(found) ? ` ${K.say("ui.ledger.expected", { bytes: K.size(expected) })}` : "";
  // How text was kept before and after: what of it changed, its format or where it lies.
  const kept = ({ before, after }) => {
    if (!before || !after) return "";
    const names = (one) => (one.formats ?? []).map(K.format).join(" + ");
    const tier = (one) => K.say(`ui.ledger.tier.${one.tier}`);
    const [from, to] = before.tier === after.tier ? [names(before), names(after)] : [tier(before), tier(after)];
    return from === to ? "" : `${from} → ${to}`;
  };

  const add = (found) => {
    const known = new Map(entries.map((entry) => [entry.number, entry]));
    const isNews = (entry) => entry.number === undefined || (known.get(entry.number)?.changed ?? -1) < (entry.changed ?? 0);
    const fresh = found.filter(isNews); // new ones, and those that grew: they take their own place
    if (!fresh.length) return;
    const told = new Set(fresh.map((entry) => entry.number));
    const others = entries.filter((entry) => entry.number === undefined || !told.has(entry.number));
    entries = [...others, ...fresh].sort((a, b) => (a.number ?? 0) - (b.number ?? 0));
    K.emit("entries", entries);
  };
  // The live channel tells a chat's entries from the first when it is opened, then the new ones.
  K.on("ledger", add);
  K.on("chat", () => {
    entries = [];
    K.emit("entries", entries);
  });
})();
