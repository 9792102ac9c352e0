import typescript from '@typescript-eslint/eslint-plugin';
import parser from '@typescript-eslint/parser';
import react from 'eslint-plugin-react';
import hooks from 'eslint-plugin-react-hooks';

export default [
  { ignores: ['lib/**', 'node_modules/**', 'coverage/**', '.yarn/**', 'dev/**'] },
  {
    files: ['**/*.ts', '**/*.tsx'],
    languageOptions: { parser, parserOptions: { project: ['./tsconfig.json', './tsconfig.test.json'] } },
    plugins: { '@typescript-eslint': typescript, react, 'react-hooks': hooks },
    rules: {
      ...typescript.configs['eslint-recommended'].overrides[0].rules,
      ...typescript.configs['recommended'].rules,
      ...hooks.configs.recommended.rules,
      '@typescript-eslint/naming-convention': [
        'error',
        { selector: 'interface', format: ['PascalCase'], custom: { regex: '^I[A-Z]', match: true } }
      ],
      '@typescript-eslint/no-explicit-any': 'error',
      '@typescript-eslint/no-namespace': 'off',
      '@typescript-eslint/no-redeclare': 'off',
      '@typescript-eslint/no-unused-expressions': ['error', { allowShortCircuit: true }],
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/consistent-type-imports': 'off',
      curly: 'error',
      eqeqeq: 'error',
      'no-console': ['error', { allow: ['warn', 'error'] }],
      // Everything a model says is shown as text: no markup may be made from it.
      'react/no-danger': 'error',
      'no-restricted-properties': [
        'error',
        { property: 'innerHTML', message: 'Untrusted text must stay text: use textContent.' },
        { property: 'outerHTML', message: 'Untrusted text must stay text: use textContent.' },
        { property: 'insertAdjacentHTML', message: 'Untrusted text must stay text: use textContent.' }
      ]
    }
  }
];
