// Which elements are near the screen. One observer for all of them: what comes into view together is told together, and asks in one question.

const watched = new Map<Element, (seen: boolean) => void>();

const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) watched.get(target)?.(isIntersecting);
  },
  { rootMargin: '200px' },
);

/** Tells `seen` of every change, from now until the function that is returned is called. */
export function watchSeen(element: Element, seen: (seen: boolean) => void): () => void {
  watched.set(element, seen);
  observer.observe(element);
  return () => {
    watched.delete(element);
    observer.unobserve(element);
  };
}
