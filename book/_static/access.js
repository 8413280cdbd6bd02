// What the theme's pages lack for those who use no mouse or do not see them.
(() => {
  // Whatever scrolls can be scrolled by keys, too: it takes the focus. The theme does this once, for what it knows of;
  // figures, plots and what a fold hides come later or are ours.
  const ours = "pre, .plot, .terminal, .flow, .gw-scroll, .gw-tokens, .pst-scrollable-table-container, .kill-matrix, .math, mjx-container";
  const scrolls = (element) => {
    const style = getComputedStyle(element);
    return element.scrollWidth > element.clientWidth && /auto|scroll/.test(style.overflowX)
      || element.scrollHeight > element.clientHeight && /auto|scroll/.test(style.overflowY);
  };
  const mark = () => {
    for (const element of document.querySelectorAll(ours)) {
      if (element.tabIndex < 0 && scrolls(element)) element.tabIndex = 0;
    }
  };
  addEventListener("load", () => {
    mark();
    window.MathJax?.startup?.promise?.then(mark);
  });
  addEventListener("resize", mark);
  document.addEventListener("toggle", mark, true);

  document.addEventListener("DOMContentLoaded", () => {
    // A button is called what it shows, or nobody can ask for it by voice.
    for (const button of document.querySelectorAll(".search-button-field")) {
      button.setAttribute("aria-label", button.textContent.trim().replace(/\s+/g, " "));
    }
    // The course's name stands in the sidebar, which is no landmark.
    const sidebar = document.getElementById("pst-primary-sidebar");
    sidebar?.setAttribute("role", "complementary");
    sidebar?.setAttribute("aria-label", "The book");
  });
})();
