// Begins the page.
import './styles/base.css';
import './styles/parts.css';
import { render } from 'preact';
import { App } from './app';

const root = document.getElementById('app') as HTMLElement;
// The frame that is painted before this program is there.
root.replaceChildren();
render(<App />, root);
