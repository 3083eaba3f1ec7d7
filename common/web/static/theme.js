// Before the first paint: the theme that the reader chose, where it is not the system's.
try {
  const theme = localStorage.getItem("cmdbus.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps nothing has the system's theme.
}
