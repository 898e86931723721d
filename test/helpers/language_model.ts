/** Tensors of the fixtures by name. Of qwen3_5_moe, which is published with images, those of what is read and saved: the language model. */
export function languageModel<T>(tensors: Readonly<Record<string, T>>): Record<string, T> {
  const own = Object.entries(tensors).filter(([name]) => !/^model\.visual\./.test(name));
  return Object.fromEntries(
    own.map(([name, tensor]) => [name.replace(/^model\.language_model\./, 'model.'), tensor]),
  );
}
