// Folded reasoning stays as the person left it, though its message is drawn anew with every update.
(() => {
  const K = window.kvchat;
  let opened = new Map(); // id -> whether it was opened or folded by hand

  document.addEventListener("click", (event) => {
    const fold = event.target.closest?.(".kv-think > summary")?.parentElement;
    if (fold) opened.set(fold.id, !fold.open);
  });
  const keep = () => {
    for (const fold of document.querySelectorAll(".kv-think"))
      if (opened.has(fold.id) && fold.open !== opened.get(fold.id)) fold.open = opened.get(fold.id);
  };
  K.on("chat", () => (opened = new Map()));
  const watch = () => {
    const chat = document.getElementById("kv-chat");
    if (!chat) return setTimeout(watch, 50);
    new MutationObserver(keep).observe(chat, { childList: true, subtree: true });
  };
  watch();
})();
