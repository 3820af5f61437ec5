// The live channel: one stream of frames for a tab that is seen, none for a hidden one.
// A browser keeps six connections to a host; a stream in every tab would hang the seventh.
(() => {
  const K = window.kvchat;
  let source = null;
  let retry = 0;
  K.frame = null;
  K.online = true;

  const close = () => {
    clearTimeout(retry);
    source?.close();
    source = null;
  };
  const take = (chat, event) => {
    if (chat !== K.chat) return; // it was under way when another chat was opened
    const frame = JSON.parse(event.data);
    K.frame = frame;
    if (!K.online) {
      K.online = true;
      K.emit("online", true);
      K.act("open"); // what happened meanwhile
    }
    K.emit("frame", frame);
    if (K.chat && frame.ledger?.length) K.emit("ledger", frame.ledger);
  };
  // The stream was refused, or never came about: is it the chat that is not there, or kvchat?
  const ask = async () => {
    const chat = K.chat;
    if (!chat) return false;
    try {
      const found = await fetch(`/api/memory?chat=${encodeURIComponent(chat)}`);
      return found.status === 404 && chat === K.chat;
    } catch {
      return false;
    }
  };
  const lose = () => {
    if (!K.online) return;
    K.online = false;
    K.emit("online", false);
  };
  const open = () => {
    close();
    if (document.hidden) return;
    const chat = K.chat;
    source = new EventSource(`/api/live${chat ? `?chat=${encodeURIComponent(chat)}` : ""}`);
    source.onmessage = (event) => take(chat, event);
    source.addEventListener("gone", () => {
      close();
      K.act("open"); // says so, and shows an empty page
    });
    source.onerror = async () => {
      const failed = source;
      if (failed?.readyState !== EventSource.CLOSED) return lose(); // the browser tries again
      if (await ask()) return K.act("open");
      lose();
      if (failed === source) retry = setTimeout(open, 2000);
    };
  };

  // By hand, without waiting for the next try; the button rests while it is made.
  K.reconnect = (event) => {
    const button = event.currentTarget;
    button.disabled = true;
    setTimeout(() => (button.disabled = false), 1000);
    open();
  };

  K.on("online", (is) => document.body.classList.toggle("kv-offline", !is));
  K.on("chat", open);
  let wasHidden = document.hidden;
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      K.call("leave", K.wish());
    } else if (wasHidden) {
      open();
      K.act("open"); // what happened meanwhile
    }
    wasHidden = document.hidden;
  });
  // A page that falls behind while an answer streams in asks for fewer updates: they would pile up.
  const BEAT_MS = 300;
  let late = 0;
  const beat = (due) => {
    const lag = performance.now() - due;
    late = K.notes.live && !document.hidden && lag > BEAT_MS ? late + 1 : 0;
    if (late > 1) {
      late = 0;
      K.call("slower", { tab: K.tab });
    }
    setTimeout(beat, BEAT_MS, performance.now() + BEAT_MS);
  };
  beat(performance.now());
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && open());
  open();
})();
