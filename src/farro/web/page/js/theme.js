/* Before the first paint: the theme that was chosen here, else the system's. Switching lives in frame.js. */
try {
  const chosen = localStorage.getItem("farro.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* no storage: the system's */ }
