// Cards above the box: what happened to memory, in numbers, with buttons that do something about it.
// One at a time, the gravest first; each is there until it is closed, acted on, or a while is over.
(() => {
  const K = window.kvchat;
  const MIB = 2 ** 20;
  const SHOWN_S = 300;
  const LEAST_GAIN = 64; // tokens: for fewer, no bits are given up
  const LEAST_REPLY = 128; // that a prompt is admitted with
  const GREW_S = 60;
  const STEPS = ["int8/int8", "int6/int4", "int4/int4"];
  let entries = [];
  let others = []; // [at_s, bytes of other programs] of the last minute
  let began = Date.now() / 1000; // this page's time with this server: what was before is no news
  let acted = ""; // the key of the card whose button was pressed, and what came of it
  let outcome = "";

  const closed = new Set();
  const lastNote = () => K.notes.turns.at(-1);
  const recent = (entry) => entry.at_s >= began && Date.now() / 1000 - entry.at_s < SHOWN_S && (entry.chat ?? K.chat) === K.chat;
  const device = () => K.frame?.device ?? {};
  const newest = (is) => entries.findLast((entry) => recent(entry) && is(entry));

  // --- what a button may do ---------------------------------------------------------------------------

  const apply = async (changes) => {
    const found = await K.call("apply", { changes });
    const wrong = found.error ? `${found.error.message} ${found.error.remedy}` : Object.values(found.mistakes ?? {}).map((one) => one.message ?? one).join(" ");
    if (wrong) throw new Error(wrong);
  };
  const goOn = () => {
    const note = lastNote();
    if (note) K.act(note.answered ? "continue" : "regenerate", K.turnOf(note));
  };
  // Room that a larger budget would have: in whole steps, and never what the headroom keeps.
  const STEP = 64 * MIB;
  const stepsOfBudget = () => (device().budget ? Math.floor(((device().free ?? 0) - (device().headroom ?? 0)) / STEP) : 0);
  const moreBudget = (least) => {
    const { budget } = device();
    const wanted = Math.max(Math.min(Math.floor(budget / 4 / STEP), stepsOfBudget()), Math.ceil((least || 0) / STEP));
    return wanted > 0 && wanted <= stepsOfBudget() ? budget + wanted * STEP : null;
  };
  const moreHeadroom = (by) => Math.round(((device().headroom ?? 0) + by) / MIB) * MIB;
  // `least`: bytes that lacked.
  const raiseBudget = (code, then, least) => {
    const size = moreBudget(least);
    return size && { code, facts: { size: K.size(size) }, changes: { memory_budget: size }, then };
  };
  // The smallest budget with which so much fits as is wanted of it: the settings foretell what does.
  const raiseEnough = (code, then, fits) => stepsOfBudget() > 0 && { code, facts: { size: "…", budget: device().budget }, then, enough: fits };
  const named = (pair) => (pair.split("/")[0] === pair.split("/")[1] ? pair.split("/")[0] : pair);
  const lowerFloor = () => {
    const offered = K.frame?.formats?.offered ?? [];
    const next = STEPS.find((pair, at) => !offered.includes(pair) && (at === 0 || offered.includes(STEPS[at - 1])));
    return next && { code: "ui.card.fewer_bits", facts: { format: K.format(next) }, changes: { floor_format: named(next) } };
  };

  // Not old turns only but the question itself: the first format, of those that the model passed, in
  // which all of it fits. Which one that is, the settings foretell.
  const sealLower = (tokens, then) => {
    const pairs = STEPS.filter((pair) => (K.frame?.formats?.offered ?? []).includes(pair));
    return pairs.length > 0 && { code: "ui.card.compress.send", pairs, tokens, then };
  };

  // --- the cards, the gravest first -------------------------------------------------------------------

  // Where no budget binds, what is short is the headroom: a margin, which may be used knowingly.
  const mayTry = () => {
    const { budget, free, headroom } = device();
    const used = (K.frame?.weights_bytes ?? 0) + (K.frame?.kv?.device_bytes ?? 0);
    return headroom > 0 && (!budget || (free ?? 0) - headroom < budget - used);
  };
  const OVER = ["prompt_over_memory", "prompt_over_length", "pinned_turns_too_large", "pinned_documents_too_large"];
  K.isTooLong = (note) => OVER.includes(note.problem?.code);
  const CARDS = [
    () => {
      const note = lastNote();
      if (!note?.problem?.code?.startsWith("out_of_memory")) return null; // whatever made it short
      const { budget } = device();
      return {
        key: `memory/${note.name}`, title: "ui.card.memory", text: note.problem.remedy,
        buttons: [
          budget ? raiseBudget("ui.card.budget.go_on", goOn, note.problem.facts?.needed) : { code: "ui.card.headroom.go_on", facts: { size: K.size(moreHeadroom(256 * MIB)) }, changes: { headroom: moreHeadroom(256 * MIB) }, then: goOn },
          { code: "ui.card.chunk.go_on", act: halveChunk, then: goOn },
        ],
      };
    },
    () => {
      const note = lastNote();
      if (!note || note.answered || !K.isTooLong(note)) return null;
      const again = () => K.act("regenerate", K.turnOf(note));
      const documents = K.frame?.documents ?? [];
      const whole = documents.some((one) => one.mode === "whole");
      const { tokens, capacity } = note.problem.facts ?? {};
      const buttons = [
        documents.some((one) => one.pages > 1) && { code: "ui.card.pages", act: () => K.panel.open("documents"), stays: true },
        note.problem.code === "prompt_over_memory" && sealLower(tokens, again),
        whole && { code: "ui.card.passages", changes: { document_mode: "passages" }, then: again },
        note.problem.code !== "prompt_over_length" && raiseEnough("ui.card.budget.send", again, (fits) => fits.in_steps_tokens >= tokens + LEAST_REPLY),
        note.problem.code === "prompt_over_memory" && mayTry() && { code: "ui.card.anyway", facts: { size: K.size(device().headroom) }, then: () => K.act("anyway", K.turnOf(note)) },
      ].filter(Boolean);
      if (!buttons.length) return null; // under the question stand the reason and the way to edit it
      return {
        key: `long/${note.name}`, title: "ui.card.long", text: tokens ? K.say("ui.card.long.text", { tokens, capacity }) : "",
        buttons,
      };
    },
    () => {
      const entry = newest((one) => one.code === "spill");
      return entry && {
        key: `spill/${entry.number}`, title: "ui.card.spill", facts: { times: entry.arguments?.times ?? "" }, text: K.say("ui.card.spill.text"),
        buttons: [what, { code: "ui.card.free", facts: { size: K.size(300 * MIB) }, changes: { headroom: moreHeadroom(300 * MIB) } }],
      };
    },
    () => {
      const entry = newest((one) => ["truncate_turns", "summarize"].includes(one.code) && K.frame?.undo?.offered?.includes(one.number));
      const there = K.capacity(K.frame ?? {})?.used || K.frame?.fits?.most_tokens || 0;
      const wanted = there + (entry?.arguments?.tokens ?? 0) + 2 * LEAST_REPLY; // all of it, a question and its answer
      return entry && {
        key: `left/${entry.number}`, title: entry.code === "summarize" ? "ui.card.summarized" : "ui.card.left_out", facts: { turns: K.ranges(entry.turn_numbers ?? []), count: (entry.turn_numbers ?? []).length },
        text: [K.entryWhy(entry), entry.lost_tokens ? K.say("ui.ledger.lost", { tokens: entry.lost_tokens }) : ""].filter(Boolean).join(" · "), undo: entry.number,
        buttons: [entry.code === "truncate_turns" && { code: "ui.card.summary", act: addSummary }, raiseEnough("ui.card.budget", null, (fits) => fits.most_tokens >= wanted), lowerFloor()],
      };
    },
    () => {
      const entry = newest((one) => one.reason === "others_grew");
      const grew = grown();
      return entry && {
        key: `grew/${entry.number}`, title: grew ? "ui.card.grew" : "ui.card.grew.plain", facts: { size: K.size(grew) },
        text: [K.entryWhat(entry), entry.bytes_measured > 0 ? K.say("ui.ledger.freed", { bytes: K.size(entry.bytes_measured) }) : "", K.roomSaid(K.frame ?? {})].filter(Boolean).join(" · "),
        buttons: [what, lowerFloor()],
      };
    },
  ];
  const what = { code: "ui.card.what", act: () => K.held.open(), stays: true };
  const grown = () => {
    const now = others.at(-1)?.[1] ?? 0;
    const by = now - Math.min(now, ...others.map(([, bytes]) => bytes));
    return by >= 16 * MIB ? by : 0;
  };
  const setting = async (name) => {
    const found = await K.call("settings");
    return (found.groups ?? []).flatMap((group) => group.fields).find((field) => field.name === name)?.value;
  };
  const halveChunk = async () => apply({ prefill_chunk: Math.max(16, Math.floor(((await setting("prefill_chunk")) ?? 512) / 2)) });
  // The rung that writes a summary comes before the one that leaves turns out.
  const addSummary = async () => {
    const ladder = (await setting("ladder")) ?? [];
    const rest = ladder.filter((rung) => rung !== "summarize" && rung !== "truncate_turns");
    await apply({ ladder: [...rest, "summarize", "truncate_turns"] });
  };

  // --- drawing ----------------------------------------------------------------------------------------

  let box = null;
  const draw = () => {
    if (!box?.isConnected) stand();
    if (!box) return;
    const card = K.notes.live && !outcome ? null : CARDS.map((make) => make()).find((one) => one && !closed.has(`${K.chat}/${one.key}`));
    const key = card ? JSON.stringify([K.chat, card.key, card.buttons.map((one) => one && [one.code, one.facts]), acted === card.key && outcome]) : "";
    if (box.kvKey === key) {
      if (card && acted !== card.key) K.put(box.querySelector(".kv-card-text"), card.text); // no button is drawn anew
      return;
    }
    box.kvKey = key;
    K.show(box, Boolean(card));
    box.replaceChildren(...(card ? inside(card) : []));
    if (card) foretell(card, key);
  };
  const inside = (card) => {
    const close = () => {
      closed.add(`${K.chat}/${card.key}`);
      draw();
    };
    const done = acted === card.key ? outcome : "";
    const buttons = done ? [] : card.buttons.filter(Boolean).map((one) => button(card, one));
    return [
      K.icon("note"),
      K.el("div", {},
        K.el("strong", { text: K.say(card.title, card.facts) }),
        K.el("span", { class: "kv-card-text", text: done || card.text }),
        K.el("div", { class: "kv-card-buttons" }, card.undo !== undefined ? K.undoPlace(card.undo) : null, ...buttons)),
      K.button("ui.close", "close", close, { class: "kv-tool" }),
    ];
  };
  const button = (card, one) => {
    const press = async (event) => {
      if (one.stays) return one.act();
      event.currentTarget.disabled = true;
      let done = false;
      try {
        if (one.changes) await apply(one.changes);
        if (one.act) await one.act();
        outcome = K.say(one.then ? "ui.card.done.then" : "ui.card.done");
        done = true;
      } catch (error) {
        outcome = error.message; // what was refused, in the page's words
      }
      acted = card.key;
      draw();
      if (done) one.then?.();
    };
    const element = K.el("button", { type: "button", class: "kv-plain", text: K.say(one.code, one.facts), on: { click: press } });
    element.hidden = one.code === "ui.card.fewer_bits" || Boolean(one.pairs || one.enough); // until it is known what it gains
    one.element = element;
    return element;
  };
  // What a change would gain stands on its button, as the settings foretell it.
  const foretell = async (card, key) => {
    for (const one of card.buttons) {
      if (one?.pairs) await findPair(one, key);
      if (one?.enough) await findBudget(one, key);
      if (!one?.changes || one.then) continue;
      const found = await K.call("foretell", { changes: one.changes });
      const more = (found.then?.tokens ?? 0) - (found.now?.tokens ?? 0);
      if (box.kvKey !== key || !one.element?.isConnected) return;
      if (one.code === "ui.card.fewer_bits" && more < LEAST_GAIN) one.element.remove();
      else if (more > 0) K.put(one.element, `${K.say(one.code, one.facts)} ${K.say("ui.card.more", { tokens: more })}`);
      K.show(one.element, true);
    }
  };
  const findBudget = async (one, key) => {
    const { budget } = device();
    const isEnough = async (steps) => {
      const found = await K.call("foretell", { changes: { memory_budget: budget + steps * STEP } });
      return Boolean(found.then) && one.enough(found.then.fits);
    };
    let [low, high] = [0, stepsOfBudget()];
    const can = await isEnough(high);
    while (can && high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (await isEnough(middle)) high = middle;
      else low = middle;
    }
    if (box.kvKey !== key || !one.element?.isConnected) return;
    if (!can) return one.element.remove();
    const size = budget + high * STEP;
    Object.assign(one, { changes: { memory_budget: size }, facts: { size: K.size(size) } });
    K.put(one.element, K.say(one.code, one.facts));
    K.show(one.element, true);
  };
  const findPair = async (one, key) => {
    for (const pair of one.pairs) {
      const changes = { seal_format: named(pair) };
      const found = await K.call("foretell", { changes });
      if (box.kvKey !== key || !one.element?.isConnected) return;
      if ((found.then?.fits.in_steps_tokens ?? 0) <= one.tokens) continue; // none of it is old text
      one.changes = changes;
      K.put(one.element, K.say(one.code, { format: K.format(pair) }));
      return K.show(one.element, true);
    }
    one.element.remove();
  };
  const stand = () => {
    const form = document.querySelector("#kv-composer .kv-composer");
    if (!form) return;
    box = K.el("div", { class: "kv-card kv-memory-card", role: "alert", hidden: true });
    form.before(box);
  };

  K.on("frame", (frame) => {
    if (frame.at_s > 0) {
      others.push([frame.at_s, frame.device?.other_processes ?? 0]);
      others = others.filter(([at_s]) => at_s > frame.at_s - GREW_S);
    }
    draw();
  });
  K.on("notes", (notes) => {
    if (notes.live) acted = outcome = ""; // it goes on: the card has done its work
    draw();
  });
  K.on("online", (is) => {
    if (is) began = Date.now() / 1000; // kvchat may have been started anew
  });
  K.on("entries", (list) => {
    entries = list;
    draw();
  });
})();
