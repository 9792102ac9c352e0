const esModules = [
  '@jupyterlab',
  '@jupyter',
  '@lumino',
  '@microsoft',
  '@codemirror',
  '@lezer',
  'd3-hierarchy',
  'exenv-es6',
  'lib0',
  'yjs'
];

module.exports = {
  testEnvironment: 'jsdom',
  testMatch: ['<rootDir>/test/**/*.test.ts?(x)'],
  setupFiles: ['<rootDir>/test/setup.js'],
  transform: {
    '\\.(ts|tsx|js|mjs)$': [
      '@swc/jest',
      {
        jsc: {
          parser: { syntax: 'typescript', tsx: true },
          transform: { react: { runtime: 'automatic' } },
          target: 'es2022'
        },
        module: { type: 'commonjs' }
      }
    ]
  },
  transformIgnorePatterns: [`/node_modules/(?!(${esModules.join('|')})/)`],
  moduleNameMapper: {
    '\\.css$': '<rootDir>/test/stub.js',
    '\\.svg$': '<rootDir>/test/svg.js',
    '^uplot$': '<rootDir>/test/uplot.ts'
  },
  clearMocks: true
};
