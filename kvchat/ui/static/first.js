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
  // The icon of the browser's tab: three turns in a bar.
  for (const old of document.querySelectorAll("link[rel~=icon]")) old.remove();
  const icon = document.createElement("link");
  Object.assign(icon, { rel: "icon", type: "image/svg+xml", href: "/icon.svg" });
  document.head.append(icon);
  // asked for without the cookie that lets a browser in, a manifest is refused
  document.querySelector("link[rel=manifest]")?.setAttribute("crossorigin", "use-credentials");
  system.addEventListener("change", dress);
  // gradio sets the class by the system alone, once, some time after this
  new MutationObserver(() => {
    if (document.body.classList.contains("dark") !== K.isDark()) dress();
  }).observe(document.body ?? root, { attributes: true, attributeFilter: ["class"] });
})();
