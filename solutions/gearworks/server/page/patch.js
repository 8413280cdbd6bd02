// Bringing a part of the page up to date with as few changes as possible.
//
// A tree is a list of nodes; a node is a string, or { tag, attributes, children }. A node that
// is the same object as before is not looked at again, and text that grows is appended to. So
// what a reader has selected stays selected, and a long answer costs what its last block costs.

export const node = (tag, attributes = {}, children = []) => ({ tag, attributes, children });

// `before`: what `parent` shows now, as the last call got it.
export function patch(parent, before, after) {
  after.forEach((now, i) => {
    const old = before[i];
    if (old === now) return;
    const place = parent.childNodes[i];
    if (old === undefined) parent.append(built(now));
    else if (typeof old === "string" && typeof now === "string") grow(place, old, now);
    else if (alike(old, now)) patch(place, old.children, now.children);
    else place.replaceWith(built(now));
  });
  while (parent.childNodes.length > after.length) parent.lastChild.remove();
}

function grow(place, old, now) {
  if (now.startsWith(old)) place.appendData(now.slice(old.length));
  else place.data = now;
}

function alike(old, now) {
  return old.tag !== undefined && old.tag === now.tag
    && JSON.stringify(old.attributes) === JSON.stringify(now.attributes);
}

export function built(tree) {
  if (typeof tree === "string") return document.createTextNode(tree);
  const element = document.createElement(tree.tag);
  Object.entries(tree.attributes).forEach((pair) => element.setAttribute(...pair));
  for (const child of tree.children) element.append(built(child));
  return element;
}
