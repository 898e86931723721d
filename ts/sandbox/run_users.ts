/** User ids that systemd keeps for services that own nothing. */
const FIRST = 61184;
const COUNT = 4336;

/** One user per run of a caller that is root: programs cannot touch each other, nor count against each other's processes. */
export class RunUsers {
  private readonly taken = new Set<number>();

  static has(uid: number): boolean {
    return uid >= FIRST && uid < FIRST + COUNT;
  }

  take(): number {
    let uid: number;
    do uid = FIRST + Math.floor(Math.random() * COUNT);
    while (this.taken.has(uid));
    this.taken.add(uid);
    return uid;
  }

  giveBack(uid: number): void {
    this.taken.delete(uid);
  }
}
