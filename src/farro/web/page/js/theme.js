/* Apply the stored colour theme before the first paint, so that the page does not flash in the other one. */
try {
  const theme = localStorage.getItem("farro.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is blocked: the page follows the system.
}
