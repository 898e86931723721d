import { batchArithmetic, loadSftConfig } from '../../../ts/config/config';
import { configError, writeConfig } from './write_config';

const file = () => writeConfig('data: { train_files: a.jsonl }\nmodel: { partial_pretrain: m }\n');

it('has a tree of its own', () => {
  const config = loadSftConfig(file(), ['optim.lr=1e-3', 'model.dtype=bf16']);
  expect(config.model.path).toBe('m');
  expect(config.model.dtype).toBe('bfloat16');
  expect(config.data).toMatchObject({ train_batch_size: 256, max_length: 1024, messages_key: null });
  expect(config.optim).toMatchObject({ lr: 1e-3, lr_scheduler_type: 'cosine', clip_grad: 1 });
  expect(batchArithmetic(config)[0]).toContain('256 examples = 1 optimiser step');
});

it('has at least one file of examples', () => {
  expect(configError(() => loadSftConfig(file(), ['data.train_files=[]'])).message).toBe(
    'data.train_files: expected at least one file, got []',
  );
});

it('may have a learning rate of 0, as RL has', () => {
  expect(loadSftConfig(file(), ['optim.lr=0']).optim.lr).toBe(0);
  expect(configError(() => loadSftConfig(file(), ['optim.lr=-1'])).message).toMatch(/optim\.lr/);
});

it('says how the model is spread and where it lies, with the names of earlier releases too', () => {
  const { fsdp_config: keys } = loadSftConfig(file(), ['model.fsdp_config.cpu_offload=true']).model;
  expect(keys).toMatchObject({ offload_policy: true, param_offload: false, reshard_after_forward: true });
  const ranks = ['trainer.n_gpus_per_node=4', 'model.fsdp_config.fsdp_size=3'];
  expect(configError(() => loadSftConfig(file(), ranks)).message).toContain(
    'model.fsdp_config.fsdp_size: expected -1 or a divisor of the number of workers (4), got 3',
  );
});

it('saves and validates every so many steps, or once per pass over the data', () => {
  const keys = ['trainer.save_freq=after_each_epoch', 'trainer.test_freq=5'];
  expect(loadSftConfig(file(), keys).trainer).toMatchObject({ save_freq: 'after_each_epoch', test_freq: 5 });
  expect(configError(() => loadSftConfig(file(), ['trainer.save_freq=sometimes'])).message).toContain(
    'trainer.save_freq: expected an integer >= -1, or after_each_epoch, got "sometimes"',
  );
});

it('says of a list in quotes that these make it a text', () => {
  expect(loadSftConfig(file(), ['optim.betas=[0.9,0.9]']).optim.betas).toEqual([0.9, 0.9]);
  expect(configError(() => loadSftConfig(file(), ["optim.betas='[0.9,0.9]'"])).message).toBe(
    'optim.betas: expected two numbers from 0 and below 1, got "[0.9,0.9]", a text: leave out the quotes around it',
  );
  expect(configError(() => loadSftConfig(file(), ["optim.betas='[0.9'"])).message).toMatch(/got "\[0\.9"$/);
});

it('names unknown keys', () => {
  expect(configError(() => loadSftConfig(file(), ['model.pth=m'])).message).toContain(
    'did you mean model.path?',
  );
});
