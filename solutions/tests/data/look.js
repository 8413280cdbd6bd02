// What a page's texts look like: for each its contrast with the paper behind it, its size in
// pixels and itself; and how far the page is wider than its window.
() => {
  const options = { willReadFrequently: true };
  const canvas = document.createElement("canvas").getContext("2d", options);
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) =>
    0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest("style, script, title, noscript, .unseen, .skip")) continue;
    let behind = element;
    while (behind && rgba(getComputedStyle(behind).backgroundColor)[3] < 255)
      behind = behind.parentElement;
    if (!behind) throw new Error("no paper behind " + texts.currentNode.data);
    const style = getComputedStyle(element);
    const inSvg = element.namespaceURI.endsWith("svg");
    const ink = luminance(rgba(inSvg ? style.fill : style.color));
    const paper = luminance(rgba(getComputedStyle(behind).backgroundColor));
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    found.push([contrast, parseFloat(style.fontSize), texts.currentNode.data]);
  }
  return [found, document.documentElement.scrollWidth - innerWidth];
}
