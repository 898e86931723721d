// The resources of the tests' API server, and what it says of them: discovery, and the parts of OpenAPI that kubectl asks for.
import protobuf from 'protobufjs';

export interface Resource {
  /** '' for the core. */
  group: string;
  version: string;
  plural: string;
  kind: string;
}

export const RESOURCES: readonly Resource[] = [
  { group: '', version: 'v1', plural: 'pods', kind: 'Pod' },
  { group: '', version: 'v1', plural: 'secrets', kind: 'Secret' },
  { group: '', version: 'v1', plural: 'services', kind: 'Service' },
  { group: 'batch', version: 'v1', plural: 'jobs', kind: 'Job' },
  { group: 'jobset.x-k8s.io', version: 'v1alpha2', plural: 'jobsets', kind: 'JobSet' },
  { group: 'trainer.kubeflow.org', version: 'v1alpha1', plural: 'trainingruntimes', kind: 'TrainingRuntime' },
  { group: 'trainer.kubeflow.org', version: 'v1alpha1', plural: 'trainjobs', kind: 'TrainJob' },
];

const VERBS = ['create', 'delete', 'get', 'list', 'patch', 'watch'];

export const apiVersionOf = ({ group, version }: Resource): string =>
  group === '' ? version : `${group}/${version}`;
const rootOf = ({ group, version }: Resource): string =>
  group === '' ? `api/${version}` : `apis/${group}/${version}`;

const groups = (): Resource[] => {
  const first = new Map(RESOURCES.map((resource) => [rootOf(resource), resource]));
  return [...first.values()];
};

/** What is answered to a GET of a path that describes the API, as JSON; null: no such path. */
export function describeApi(path: string): unknown {
  if (path === '/version')
    return { major: '1', minor: '32', gitVersion: 'v1.32.0', platform: 'linux/amd64', goVersion: '' };
  if (path === '/api') return { kind: 'APIVersions', versions: ['v1'] };
  if (path === '/apis') {
    const list = groups()
      .filter(({ group }) => group !== '')
      .map((resource) => {
        const version = { groupVersion: apiVersionOf(resource), version: resource.version };
        return { name: resource.group, versions: [version], preferredVersion: version };
      });
    return { kind: 'APIGroupList', apiVersion: 'v1', groups: list };
  }
  if (path === '/openapi/v3')
    return {
      paths: Object.fromEntries(
        groups().map((one) => [rootOf(one), { serverRelativeURL: `/openapi/v3/${rootOf(one)}` }]),
      ),
    };
  const open = path.startsWith('/openapi/v3/');
  const root = path.slice(open ? '/openapi/v3/'.length : 1);
  const resources = RESOURCES.filter((resource) => rootOf(resource) === root);
  if (resources.length === 0) return null;
  return open
    ? { openapi: '3.0.0', info: INFO, paths: Object.fromEntries(resources.map(pathOf)) }
    : {
        kind: 'APIResourceList',
        apiVersion: 'v1',
        groupVersion: apiVersionOf(resources[0] as Resource),
        resources: resources.map(({ plural, kind }) => ({
          name: plural,
          singularName: kind.toLowerCase(),
          namespaced: true,
          kind,
          verbs: VERBS,
        })),
      };
}

const INFO = { title: 'Kubernetes as far as the tests of Troupe need it', version: 'v1' };
const KIND = 'x-kubernetes-group-version-kind';
/** kubectl sends what it finds here: otherwise it would check manifests itself, or refuse a dry run. */
const PARAMETERS = ['dryRun', 'fieldValidation', 'force'];

const openPath = (resource: Resource): string =>
  `/${rootOf(resource)}/namespaces/{namespace}/${resource.plural}/{name}`;

function pathOf(resource: Resource): [string, unknown] {
  const { group, version, kind } = resource;
  const parameters = PARAMETERS.map((name) => ({ name, in: 'query', schema: { type: 'string' } }));
  return [openPath(resource), { patch: { parameters, [KIND]: { group, version, kind }, responses: {} } }];
}

/** The messages of gnostic's OpenAPIv2.proto that are used, as kubectl before 1.27 reads them. */
const MESSAGES: Record<string, Record<string, [type: string, id: number, rule?: 'repeated']>> = {
  Document: { swagger: ['string', 1], info: ['Info', 2], paths: ['Paths', 8] },
  Info: { title: ['string', 1], version: ['string', 2] },
  Paths: { path: ['NamedPathItem', 2, 'repeated'] },
  NamedPathItem: { name: ['string', 1], value: ['PathItem', 2] },
  PathItem: { patch: ['Operation', 8] },
  Operation: { parameters: ['ParametersItem', 8, 'repeated'], vendorExtension: ['NamedAny', 13, 'repeated'] },
  ParametersItem: { parameter: ['Parameter', 1] },
  Parameter: { nonBodyParameter: ['NonBodyParameter', 2] },
  NonBodyParameter: { queryParameterSubSchema: ['QueryParameterSubSchema', 3] },
  QueryParameterSubSchema: { in: ['string', 2], name: ['string', 4] },
  NamedAny: { name: ['string', 1], value: ['Any', 2] },
  Any: { yaml: ['string', 2] },
};

/** OpenAPI v2 in protobuf. */
export function openApiV2(): Uint8Array {
  const nested = Object.entries(MESSAGES).map(([name, fields]) => {
    const all = Object.entries(fields).map(([field, [type, id, rule]]) => [field, { type, id, rule }]);
    return [name, { fields: Object.fromEntries(all) }];
  });
  const root = protobuf.Root.fromJSON({ nested: Object.fromEntries(nested) });
  const document = root.lookupType('Document');
  const parameters = PARAMETERS.map((name) => ({
    parameter: { nonBodyParameter: { queryParameterSubSchema: { in: 'query', name } } },
  }));
  const path = RESOURCES.map((resource) => {
    const { group, version, kind } = resource;
    const value = { yaml: JSON.stringify({ group, version, kind }) };
    return {
      name: openPath(resource),
      value: { patch: { parameters, vendorExtension: [{ name: KIND, value }] } },
    };
  });
  return document.encode(document.fromObject({ swagger: '2.0', info: INFO, paths: { path } })).finish();
}
