/** What scrolls says so: scroll bars are hidden on many screens, and a row that is cut off is easily missed. */

import { h } from "./dom.js";
import "./style/scroll.css";

/**
 * Mark where there is more of something that scrolls: a shadow at that edge, and a line below it.
 * @param {HTMLElement} host holds what scrolls; `inner` by default is its only child
 * @param {object} [options]
 * @param {HTMLElement} [options.inner] what scrolls
 * @param {string} [options.right] said where it is wider than its place
 * @param {string} [options.below] said where it is higher than its place
 * @returns {HTMLElement} the host
 */
export function withScrollHints(host, { inner = host.firstElementChild, right = "More to the right: scroll →", below = "" } = {}) {
  const note = h("p", { class: "scroll-note muted screen", hidden: true });
  host.classList.add("scroll-host");
  const shadows = h("div", { class: "scroll-shadows screen", "aria-hidden": "true" });
  host.append(shadows, note);
  const look = () => {
    const [wide, high] = [inner.scrollWidth - inner.clientWidth, inner.scrollHeight - inner.clientHeight];
    shadows.style.inset = `${inner.offsetTop}px ${host.clientWidth - inner.offsetLeft - inner.offsetWidth}px auto ${inner.offsetLeft}px`;
    shadows.style.height = `${inner.offsetHeight}px`;
    shadows.classList.toggle("right", wide - inner.scrollLeft > 2);
    shadows.classList.toggle("below", high - inner.scrollTop > 2);
    const words = [wide > 2 ? right : "", high > 2 ? below : ""].filter(Boolean).join(" ");
    if (note.textContent !== words) note.textContent = words;
    note.hidden = !words;
  };
  inner.addEventListener("scroll", look, { passive: true });
  const watch = new ResizeObserver(look);
  watch.observe(inner);
  for (const child of inner.children) watch.observe(child);
  return host;
}
