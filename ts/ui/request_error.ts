// What is wrong with a request, for whoever sent it.

export class RequestError extends Error {
  /** `status`: of HTTP. */
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}
