// Light or dark: as the system has it, until the reader decides.

import { byId, kept } from "/page/elements.js";

const NAMES = { auto: "Auto", light: "Light", dark: "Dark" };

let theme = kept.get("gearworks.theme");
if (!(theme in NAMES)) theme = "auto";
document.documentElement.dataset.theme = theme;

export function offerThemes(changed) {
  const show = () => {
    byId("theme-name").textContent = NAMES[theme];
    byId("theme").setAttribute("aria-label", `Colours: ${NAMES[theme]}`);
  };
  byId("theme").addEventListener("click", () => {
    const names = Object.keys(NAMES);
    theme = names[(names.indexOf(theme) + 1) % names.length];
    document.documentElement.dataset.theme = theme;
    kept.set("gearworks.theme", theme);
    show();
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  show();
}
