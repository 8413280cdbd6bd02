// Whatever scrolls can be scrolled by keys, too: it takes the focus. The theme does this once, for what it knows of;
// figures, plots and what a fold hides come later or are ours.
(() => {
  const ours = "pre, .plot, .terminal, .flow, .gw-scroll, .gw-tokens, .pst-scrollable-table-container, .kill-matrix, .math";
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
  addEventListener("load", mark);
  addEventListener("resize", mark);
  document.addEventListener("toggle", mark, true);
})();
