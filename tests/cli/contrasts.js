// Of each element with a text of its own: how much its colour stands off from what is behind it, as WCAG reckons it.
(() => {
  const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (one) => {
    const found = parts(getComputedStyle(one).backgroundColor);
    return found.length === 4 && found[3] === 0 ? (one.parentElement ? behind(one.parentElement) : [255, 255, 255]) : found;
  };
  return [...document.querySelectorAll("body *")]
    .filter((one) => one.checkVisibility() && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .map((one) => {
      const [a, b] = [light(parts(getComputedStyle(one).color)), light(behind(one))].sort();
      return (b + 0.05) / (a + 0.05);
    });
})();
