// Before anything is drawn: the page's language, and light or dark as the system or the person says.
(() => {
  const K = window.kvchat;
  const root = document.documentElement;
  root.lang = K.lang;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const kept = () => {
    try {
      return localStorage.getItem("kvchat.theme");
    } catch {
      return null; // storage may be off; then the system decides
    }
  };
  K.isDark = () => (kept() ?? (system.matches ? "dark" : "light")) === "dark";
  const dress = () => {
    const dark = K.isDark();
    root.dataset.theme = dark ? "dark" : "light";
    document.body?.classList.toggle("dark", dark); // gradio's own parts look at this class
  };
  K.setTheme = (theme) => {
    try {
      if (theme === (system.matches ? "dark" : "light")) localStorage.removeItem("kvchat.theme");
      else localStorage.setItem("kvchat.theme", theme);
    } catch {
      root.dataset.theme = theme;
    }
    dress();
  };
  dress();
  // The icon of the browser's tab: three turns in a bar. Drawn here, so nothing is asked of a server.
  const picture = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#2459d6"/><path fill="#fff" d="M6 12h9v8H6z"/><path fill="#9dbcff" d="M16 12h5v8h-5z"/><path fill="#5f8cf0" d="M22 12h4v8h-4z"/></svg>`;
  for (const old of document.querySelectorAll("link[rel~=icon]")) old.remove();
  const icon = document.createElement("link");
  Object.assign(icon, { rel: "icon", type: "image/svg+xml", href: `data:image/svg+xml,${encodeURIComponent(picture)}` });
  document.head.append(icon);
  system.addEventListener("change", dress);
  // gradio sets the class by the system alone, once, some time after this
  new MutationObserver(() => {
    if (document.body.classList.contains("dark") !== K.isDark()) dress();
  }).observe(document.body ?? root, { attributes: true, attributeFilter: ["class"] });
})();
